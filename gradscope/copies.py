"""Local copies of what a person named by a URL: the copy is read, and the URL is what is said and written."""

from __future__ import annotations

from pathlib import Path

_NAMES: dict[str, str] = {}  # copy -> the URL of what it is a copy of, without its credentials


def note_copy(copy: Path, url: str) -> None:
    """Remember what a file or folder, alone in a folder of its own, is the copy of."""
    _NAMES[str(copy)] = url


def as_named(text: str) -> str:
    """A sentence or path, with URLs in place of their copies.

    Args:
        text: Any text; a copy's own folder stands for the folder above the URL.
    """
    for copy, url in _NAMES.items():
        if copy in text:
            text = text.replace(copy, url)
        text = text.replace(str(Path(copy).parent), url.rpartition("/")[0])
    return text


def copy_of(name: str | Path) -> Path:
    """The file that can be opened under a name: the copy of a URL that was copied, else the name as a path."""
    text = str(name)
    for copy, url in _NAMES.items():
        if text == url or text.startswith(f"{url}/"):
            found = Path(copy + text[len(url) :])
            if found.exists():
                return found
    return Path(name)

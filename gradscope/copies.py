"""Local copies of URLs: the copy is read, and messages and files name the URL."""

from __future__ import annotations

from pathlib import Path

_NAMES: dict[str, str] = {}  # copy -> its URL, without credentials


def note_copy(copy: Path, url: str) -> None:
    """Remember the URL of a copied file or folder, which is alone in a folder of its own."""
    _NAMES[str(copy)] = url


def as_named(text: str) -> str:
    """A sentence or path, with URLs instead of their copies.

    Args:
        text: Any text; a copy's own folder becomes the folder above the URL.
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
            copied = Path(copy + text[len(url) :])
            if copied.exists():
                return copied
    return Path(name)

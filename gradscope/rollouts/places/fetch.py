"""The one entry: whatever a person named, as a path on this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from gradscope.errors import UsageError
from gradscope.machine.processes import num_processes
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.places.failures import explaining
from gradscope.rollouts.places.kinds import awaited_in
from gradscope.rollouts.places.listing import list_place
from gradscope.rollouts.places.mirror import Mirror, in_bytes, mirrored
from gradscope.rollouts.places.urls import scheme_of

_MIRRORS: dict[Path, Mirror] = {}
"""Root of a copy -> the copy, of this process."""


def fetched(path: str | Path, progress: ProgressCallback = no_progress) -> Path:
    """What a person named, where it can be read: the path itself, or the copy of a URL, brought up to date.

    Weights and tokenizers are not copied before :func:`bring_weights` asks for them.

    Args:
        path: A path or glob, or a URL (``s3://``, ``gs://``, ``hf://``, ``http(s)://``, ``memory://``, ``file://``).
        progress: Told of each copied part, in bytes.

    Returns:
        A path or glob on this machine.

    Raises:
        UsageError: Several processes were started, and it is a URL.
    """
    scheme = scheme_of(path)
    if scheme is None:
        return Path(path)
    if scheme == "file":
        return Path(unquote(urlsplit(str(path)).path))
    if num_processes() > 1:
        raise UsageError(
            f"Each of {num_processes()} processes would make the same copy of {path}.",
            hint="Copy it to a disk that all of them see, and name the copy.",
        )
    mirror = mirrored(str(path), progress)
    _MIRRORS[mirror.root] = mirror
    return mirror.path


def bring_weights(*folders: Path | None) -> None:
    """Copy the weights and tokenizers that some folders of a copy still await; other folders are left alone."""
    for folder in folders:
        files = awaited_in(folder) if folder is not None and folder.is_dir() else ()
        for root, mirror in _MIRRORS.items():
            if files and root in (files[0], *files[0].parents):
                wanted = [entry for entry in mirror.listing.entries if mirror.place_of(entry) in files]
                with explaining(mirror.url):
                    mirror.copy(wanted)


def awaited_note(path: Path) -> tuple[str, ...]:
    """What will be copied once a step needs it, as one sentence with its size; nothing of what is all here."""
    mirror = next((mirror for root, mirror in _MIRRORS.items() if root in (path, *path.parents)), None)
    if mirror is None:
        return ()
    folders = sorted({mirror.place_of(entry).parent for entry in mirror.listing.entries})
    waiting = {file for folder in folders for file in awaited_in(folder)}
    sizes = [entry.size or 0 for entry in mirror.listing.entries if mirror.place_of(entry) in waiting]
    if not sizes:
        return ()
    files = f"{len(sizes)} file{'s' if len(sizes) > 1 else ''}"
    return (f"Weights and tokenizers ({files}, {in_bytes(sum(sizes))}) are copied when a step needs them.",)


def place_extent(url: str) -> dict[str, tuple[object, object]]:
    """How far a log at a URL has been written: file -> size and what else tells that it changed."""
    with explaining(url):
        return {entry.name: (entry.size, entry.mark) for entry in list_place(url).entries}

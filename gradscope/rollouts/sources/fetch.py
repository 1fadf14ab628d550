"""The entry point: a path, glob or URL that a user named, as a path on this machine."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gradscope.copies import as_named
from gradscope.errors import UsageError
from gradscope.machine import num_processes
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.run import Run
from gradscope.rollouts.sources.listing import awaited_in, explaining, list_source, scheme_of
from gradscope.rollouts.sources.mirror import Mirror, in_bytes, mirrored

_MIRRORS: dict[Path, Mirror] = {}  # root of a copy -> the copy, of this process


def fetched(path: str | Path, progress: ProgressCallback = no_progress) -> Path:
    """A readable path for what a user named: the path itself, or the copy of a URL, brought up to date.

    Weights and tokenizers are not copied before :func:`bring_weights` asks for them. A URL begins with ``s3://``,
    ``gs://``, ``hf://``, ``http(s)://``, ``memory://`` or ``file://``; progress is in bytes.

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
                wanted = [entry for entry in mirror.listing.entries if mirror.local_path(entry) in files]
                with explaining(mirror.url):
                    mirror.copy(wanted)


def awaited_note(path: Path) -> tuple[str, ...]:
    """What will be copied once a step needs it, as one sentence with its size; empty where nothing is awaited."""
    mirror = next((mirror for root, mirror in _MIRRORS.items() if root in (path, *path.parents)), None)
    if mirror is None:
        return ()
    folders = sorted({mirror.local_path(entry).parent for entry in mirror.listing.entries})
    waiting = {file for folder in folders for file in awaited_in(folder)}
    sizes = [entry.size or 0 for entry in mirror.listing.entries if mirror.local_path(entry) in waiting]
    if not sizes:
        return ()
    files = f"{len(sizes)} file{'s' if len(sizes) > 1 else ''}"
    return (f"Weights and tokenizers ({files}, {in_bytes(sum(sizes))}) are copied when a step needs them.",)


Extent = dict[str, tuple[object, object]]
"""File -> its size in bytes and when it was last written, in nanoseconds; of a URL the server's own mark of change."""


def log_extent(name: str | Path) -> Extent:
    """The files of a path, glob or URL as far as they are written: equal extents mean that nothing was written."""
    if scheme_of(name) not in (None, "file"):
        with explaining(str(name)):
            return {entry.name: (entry.size, entry.mark) for entry in list_source(str(name)).entries}
    path = fetched(name)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    else:
        files = [path] if path.is_file() else [Path(name) for name in glob.glob(str(path))]
    extent: Extent = {}
    for file in files:
        try:
            stat = file.stat()
        except FileNotFoundError:  # a writer's file aside, renamed since it was listed
            continue
        extent[str(file)] = (stat.st_size, stat.st_mtime_ns)
    return extent


def as_named_run(run: Run) -> Run:
    """The run, whose source names URLs in place of their copies and says what is not copied yet."""
    source = run.source
    quarantined = source.quarantined
    reasons = tuple(replace(reason, first=as_named(reason.first)) for reason in quarantined.reasons)
    return replace(
        run,
        source=replace(
            source,
            path=as_named(source.path),
            recognized=as_named(source.recognized),
            files=tuple(map(as_named, source.files)),
            inferred=(*map(as_named, source.inferred), *awaited_note(run.path)),
            missing=tuple(map(as_named, source.missing)),
            quarantined=replace(quarantined, reasons=reasons, lost=tuple(map(as_named, quarantined.lost))),
        ),
        unmerged_weights={
            number: replace(reason, hint=as_named(reason.hint)) for number, reason in run.unmerged_weights.items()
        },
    )


def names_of(paths: Sequence[Path]) -> list[str]:
    """Names for runs that are shown together: as many last parts of their paths as distinguish them, or a number.

    Example:
        >>> names_of([Path("/data/a/run"), Path("/data/b/run")])
        ['a/run', 'b/run']
    """
    parts = [path.absolute().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = [as_named("/".join(part[-length:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]

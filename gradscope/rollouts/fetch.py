"""The entry point: a path, glob or URL that a user named, as a path on this machine."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from gradscope.copies import as_named, note_copy
from gradscope.errors import InputError, UsageError
from gradscope.machine import num_processes
from gradscope.outside.limits import allowed
from gradscope.outside.plain_json import read_json
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts import listing as listings
from gradscope.rollouts.run import Run
from gradscope.say import counted
from gradscope.writing import atomic_write, is_own, partial_file

_INDEX = "index.json"
_MAX_BYTES_OF_UNKNOWN_SIZE = 4 << 30  # bytes that are copied of a file whose size the server does not report
_MAX_GROWTH = 256 << 20
"""How much more than twice its size a file may have by the time that it is copied: a log that is being written."""
_PLACEHOLDER = b"gradscope keeps the name of this file and did not copy it\n"


class Mirror(Struct, kw_only=True):
    """The copy of one source."""

    url: str  # the source, as typed; may hold credentials, so it is never written
    listing: listings.Listing  # its files at the last look
    home: Path  # the folder of this copy, with its index, in the cache
    progress: ProgressCallback  # called with each copied part, in bytes
    copied: dict[str, tuple[int | None, str | None]] = {}
    """File -> size and mark when it was last copied."""

    @property
    def root(self) -> Path:
        """The copy of the file or folder, alone in its folder but for the index."""
        name = PurePosixPath(self.listing.root).name
        return self.home / "copy" / ("root" if name in ("", "..") else name)

    @property
    def path(self) -> Path:
        """The path for readers: the copy, or a glob in it."""
        return self.root / self.listing.pattern if self.listing.pattern else self.root

    def local_path(self, entry: listings.Entry) -> Path:
        """Where the copy of a file lies."""
        return self.root / entry.name if entry.name else self.root

    def refresh(self) -> None:
        """Copy new and changed files that are read at once, mark those copied on demand, and remove deleted ones."""
        self._make_home()
        try:
            index = read_json(self.home / _INDEX)
            self.copied = {name: (size, mark) for name, (size, mark) in index.items()}
        except (InputError, OSError, ValueError, TypeError, AttributeError):
            self.copied = {}
        self._remove_stale()
        urgent = []
        for entry in self.listing.entries:
            when = listings.when_copied(entry.name)
            if self.listing.is_file or self.listing.pattern:  # it was named, whatever a log may be called
                when = "now" if listings.is_of_use(entry.name or self.root.name) else "never"
            file = self.local_path(entry)
            file.parent.mkdir(parents=True, exist_ok=True)
            match when:
                case "now":
                    urgent.append(entry)
                case "awaited" if not self._is_fresh(entry):
                    file.unlink(missing_ok=True)
                    listings.awaited_mark(file).touch()
                case "never" if not file.is_file() or file.stat().st_size != len(_PLACEHOLDER):
                    file.write_bytes(_PLACEHOLDER)  # without a look at the other hundred thousand names
        self.copy(urgent)
        note_copy(self.root, self.listing.root)

    def _make_home(self) -> None:
        for folder in (self.home.parents[1], self.home.parent, self.home):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                # other users may not write in the folder of this copy, nor may its name lead elsewhere
                is_open = folder.is_symlink() or (os.name == "posix" and bool(folder.stat().st_mode & 0o022))
                is_safe = is_own(folder) and not (folder == self.home and is_open)
            except OSError as error:
                raise InputError(
                    f"There is no place for a copy of {self.listing.root}: {folder} cannot be written.",
                    hint="Set XDG_CACHE_HOME to a folder that you may write.",
                ) from error
            if not is_safe:
                raise InputError(
                    f"{folder} is where a copy of {self.listing.root} belongs, and others may have written there.",
                    hint="Remove it, or set XDG_CACHE_HOME to a folder that only you may write.",
                )

    def copy(self, entries: Iterable[listings.Entry]) -> None:
        """Copy those of the files that changed, several at a time; a file is complete or absent."""
        wanted = [entry for entry in entries if not self._is_fresh(entry)]
        if not wanted:
            return
        count = _ByteCount(self.progress, wanted, self.listing.root)
        with ThreadPoolExecutor(listings.MAX_REQUESTS) as pool:
            jobs = [pool.submit(self._copy_one, entry, count) for entry in wanted]
            try:
                for job in as_completed(jobs):
                    job.result()
            finally:
                count.stop()
                pool.shutdown(cancel_futures=True)  # waits: a thread that goes on adds to the index
                atomic_write(self.home / _INDEX, json.dumps(self.copied, indent=0), force=True)

    def _copy_one(self, entry: listings.Entry, count: _ByteCount) -> None:
        file = self.local_path(entry)
        file.parent.mkdir(parents=True, exist_ok=True)
        shown = f"{self.listing.root}/{entry.name}".rstrip("/")
        largest = _MAX_BYTES_OF_UNKNOWN_SIZE if entry.size is None else 2 * entry.size + _MAX_GROWTH
        size_limit = listings.SizeLimit(allowed(largest), shown)

        def count_bytes(number: int) -> None:
            size_limit.add(number)
            count.add(number)

        with partial_file(self.home / hashlib.sha256(os.fsencode(entry.name)).hexdigest()) as partial:
            self.listing.system.get_file(entry.address, partial.name, callback=listings.byte_callback(count_bytes))
            if entry.size is not None and Path(partial.name).stat().st_size < entry.size:
                raise InputError(f"The copy of {shown} was cut off.", hint="Run the same command again.")
            self.copied.pop(entry.name, None)
            Path(partial.name).replace(file)
            listings.awaited_mark(file).unlink(missing_ok=True)
        # A file that grew since it was listed has another size at the next look, and is copied again.
        self.copied[entry.name] = (entry.size, entry.mark)

    def _is_fresh(self, entry: listings.Entry) -> bool:
        """Whether the copy is up to date; never certain where the server reports neither a time nor a tag."""
        return (
            entry.mark is not None
            and self.copied.get(entry.name) == (entry.size, entry.mark)
            and self.local_path(entry).is_file()
        )

    def _remove_stale(self) -> None:
        """Remove what the source no longer has, and a file that is now a folder, or the other way round."""
        expected = {self.local_path(entry) for entry in self.listing.entries}
        expected |= {listings.awaited_mark(file) for file in expected}
        if self.root.is_dir() == self.listing.is_file or self.root.is_symlink() or self.root.parent.is_symlink():
            _remove(self.root.parent)
        folders = {folder for file in expected for folder in file.parents}
        for path in sorted(self.root.rglob("*")) if self.root.is_dir() else ():
            if path.is_symlink() or (path.exists() and path not in (folders if path.is_dir() else expected)):
                _remove(path)


class _ByteCount:
    """How many bytes were copied, summed over concurrent copies."""

    def __init__(self, progress: ProgressCallback, entries: Iterable[listings.Entry], source: str) -> None:
        self._progress = progress
        self._total = sum(entry.size or 0 for entry in entries)
        self._label = f"copying {source}, {in_bytes(self._total)}"
        self._done = 0
        self._stopped = False
        self._lock = threading.Lock()
        progress(0, self._total, self._label)

    def stop(self) -> None:
        """End the copies that are under way at their next part."""
        self._stopped = True

    def add(self, number: int) -> None:
        """Add so many bytes."""
        if self._stopped:
            raise InterruptedError
        with self._lock:
            self._done += number
            self._progress(self._done, max(self._total, self._done), self._label)


def mirrored(url: str, progress: ProgressCallback) -> Mirror:
    """The up-to-date copy of a file, folder or glob; ``progress`` is called with the copied bytes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve()
    # without the URL's password; a query may distinguish files
    name = hashlib.sha256(f"{listings.shown_url(url)}?{url.partition('?')[2]}".encode()).hexdigest()[:20]
    home = cache / "gradscope" / "places" / name
    with listings.explaining(url):
        mirror = Mirror(url=url, listing=listings.list_source(url), home=home, progress=progress)
        mirror.refresh()
    return mirror


def in_bytes(number: int) -> str:
    """A number of bytes for people.

    Example:
        >>> in_bytes(2_300_000_000)
        '2.3 GB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_MIRRORS: dict[Path, Mirror] = {}  # root of a copy -> the copy, of this process


def fetched(path: str | Path, progress: ProgressCallback = no_progress) -> Path:
    """A readable path for what a user named: the path itself, or the copy of a URL, brought up to date.

    Weights and tokenizers are not copied before :func:`fetch_weights` asks for them. A URL begins with ``s3://``,
    ``gs://``, ``hf://``, ``http(s)://``, ``memory://`` or ``file://``; progress is in bytes.

    Raises:
        UsageError: It is no path, or empty, or several processes were started, and it is a URL.
    """
    if not isinstance(path, str | Path):
        raise UsageError(
            f"A run is named by its path, not by {type(path).__name__}.", hint="Write it to a file, and name that."
        )
    if not path:
        raise UsageError("The path is empty.", hint="Name a run; a variable that the shell does not know is empty.")
    scheme = listings.scheme_of(path)
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


def fetch_weights(*folders: Path | None) -> None:
    """Copy the weights and tokenizers that some folders of a copy still await; other folders are left alone."""
    for folder in folders:
        files = listings.awaited_in(folder) if folder is not None and folder.is_dir() else ()
        for root, mirror in _MIRRORS.items():
            if files and root in (files[0], *files[0].parents):
                wanted = [entry for entry in mirror.listing.entries if mirror.local_path(entry) in files]
                with listings.explaining(mirror.url):
                    mirror.copy(wanted)


def awaited_note(path: Path) -> tuple[str, ...]:
    """What will be copied once a step needs it, as one sentence with its size; empty where nothing is awaited."""
    mirror = next((mirror for root, mirror in _MIRRORS.items() if root in (path, *path.parents)), None)
    if mirror is None:
        return ()
    folders = sorted({mirror.local_path(entry).parent for entry in mirror.listing.entries})
    waiting = {file for folder in folders for file in listings.awaited_in(folder)}
    sizes = [entry.size or 0 for entry in mirror.listing.entries if mirror.local_path(entry) in waiting]
    if not sizes:
        return ()
    files = counted(len(sizes), "file")
    return (f"Weights and tokenizers ({files}, {in_bytes(sum(sizes))}) are copied when a step needs them.",)


Extent = dict[str, tuple[object, object]]
"""File -> its size in bytes and when it was last written, in nanoseconds; of a URL the server's own mark of change."""


def log_extent(name: str | Path) -> Extent:
    """The files of a path, glob or URL as far as they are written: equal extents mean that nothing was written."""
    if listings.scheme_of(name) not in (None, "file"):
        with listings.explaining(str(name)):
            return {entry.name: (entry.size, entry.mark) for entry in listings.list_source(str(name)).entries}
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

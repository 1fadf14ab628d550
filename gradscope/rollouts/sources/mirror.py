"""A copy of a source in the user's cache, brought up to date at each look: unchanged files are not copied again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gradscope.copies import note_copy
from gradscope.errors import InputError
from gradscope.outside.limits import most
from gradscope.outside.plain_json import read_json
from gradscope.progress import ProgressCallback
from gradscope.rollouts.sources.listing import (
    AT_ONCE,
    AtMost,
    Entry,
    Listing,
    awaited_mark,
    byte_callback,
    explaining,
    is_of_use,
    list_source,
    shown_url,
    when_copied,
)
from gradscope.writing import atomic_write, is_own, partial_file

_INDEX = "index.json"
_MOST_UNSIZED = 4 << 30  # bytes that are copied of a file whose size the server does not report
_MOST_GROWTH = 256 << 20
"""How much more than twice its size a file may have by the time that it is copied: a log that is being written."""
_STAND_IN = b"gradscope keeps the name of this file and did not copy it\n"


@dataclass(slots=True, kw_only=True)
class Mirror:
    """The copy of one source."""

    url: str  # the source, as typed; may hold credentials, so it is never written
    listing: Listing  # its files at the last look
    home: Path  # the folder of this copy, with its index, in the cache
    progress: ProgressCallback  # called with each copied part, in bytes
    copied: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
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

    def local_path(self, entry: Entry) -> Path:
        """Where the copy of a file lies."""
        return self.root / entry.name if entry.name else self.root

    def refresh(self) -> None:
        """Copy new and changed files that are read at once, mark those copied on demand, and remove deleted ones."""
        self._make_home()
        self._read_index()
        self._remove_stale()
        now = []
        for entry in self.listing.entries:
            match self._when(entry):
                case "now":
                    now.append(entry)
                case "awaited" if not self._is_fresh(entry):
                    self._await(entry)
                case "never":
                    self._stand_in(entry)
        self.copy(now)
        note_copy(self.root, self.listing.root)

    def _make_home(self) -> None:
        for folder in (self.home.parents[1], self.home.parent, self.home):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                is_safe = is_own(folder) and not (folder == self.home and self._is_open())
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

    def _is_open(self) -> bool:
        """Whether other users may write in the folder of this copy, or its name leads elsewhere."""
        return self.home.is_symlink() or (os.name == "posix" and bool(self.home.stat().st_mode & 0o022))

    def _when(self, entry: Entry) -> str:
        """A file that was named itself, or by a glob, is copied under any name that a log may have."""
        if self.listing.is_file or self.listing.pattern:
            return "now" if is_of_use(entry.name or self.root.name) else "never"
        return when_copied(entry.name)

    def copy(self, entries: Iterable[Entry]) -> None:
        """Copy those of the files that changed, several at a time; a file is complete or absent."""
        wanted = [entry for entry in entries if not self._is_fresh(entry)]
        if not wanted:
            return
        count = _ByteCount(self.progress, wanted, self.listing.root)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [pool.submit(self._copy_one, entry, count) for entry in wanted]
            try:
                for job in as_completed(jobs):
                    job.result()
            finally:
                count.stop()
                for job in jobs:
                    job.cancel()
                atomic_write(self.home / _INDEX, json.dumps(self.copied, indent=0), force=True)

    def _copy_one(self, entry: Entry, count: _ByteCount) -> None:
        file = self.local_path(entry)
        file.parent.mkdir(parents=True, exist_ok=True)
        shown = f"{self.listing.root}/{entry.name}".rstrip("/")
        largest = _MOST_UNSIZED if entry.size is None else 2 * entry.size + _MOST_GROWTH
        size_limit = AtMost(most(largest), shown)

        def count_both(number: int) -> None:
            size_limit.add(number)
            count.add(number)

        with partial_file(self.home / hashlib.sha256(os.fsencode(entry.name)).hexdigest()) as partial:
            self.listing.system.get_file(entry.address, partial.name, callback=byte_callback(count_both))
            if entry.size is not None and Path(partial.name).stat().st_size < entry.size:
                raise InputError(f"The copy of {shown} was cut off.", hint="Run the same command again.")
            self.copied.pop(entry.name, None)
            Path(partial.name).replace(file)
            awaited_mark(file).unlink(missing_ok=True)
        # A file that grew since it was listed has another size at the next look, and is copied again.
        self.copied[entry.name] = (entry.size, entry.mark)

    def _is_fresh(self, entry: Entry) -> bool:
        """Whether the copy is up to date; never certain where the server reports neither a time nor a tag."""
        return (
            entry.mark is not None
            and self.copied.get(entry.name) == (entry.size, entry.mark)
            and self.local_path(entry).is_file()
        )

    def _await(self, entry: Entry) -> None:
        file = self.local_path(entry)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        awaited_mark(file).touch()

    def _stand_in(self, entry: Entry) -> None:
        file = self.local_path(entry)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.stat().st_size != len(_STAND_IN):
            file.write_bytes(_STAND_IN)  # without a look at the other hundred thousand names

    def _remove_stale(self) -> None:
        """Remove what the source no longer has, and a file that is now a folder, or the other way round."""
        expected = {self.local_path(entry) for entry in self.listing.entries}
        expected |= {awaited_mark(file) for file in expected}
        if self.root.is_dir() == self.listing.is_file or self.root.is_symlink() or self.root.parent.is_symlink():
            _remove(self.root.parent)
        folders = {folder for file in expected for folder in file.parents}
        for path in sorted(self.root.rglob("*")) if self.root.is_dir() else ():
            if path.is_symlink() or (path.exists() and path not in (folders if path.is_dir() else expected)):
                _remove(path)

    def _read_index(self) -> None:
        try:
            index = read_json(self.home / _INDEX)
            self.copied = {name: (size, mark) for name, (size, mark) in index.items()}
        except (InputError, OSError, ValueError, TypeError, AttributeError):
            self.copied = {}


class _ByteCount:
    """How many bytes were copied, summed over concurrent copies."""

    def __init__(self, progress: ProgressCallback, entries: Iterable[Entry], source: str) -> None:
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
    with explaining(url):
        mirror = Mirror(url=url, listing=list_source(url), home=_home(url), progress=progress)
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


def _home(url: str) -> Path:
    """Named by the URL without its password; a query may distinguish files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve()
    name = f"{shown_url(url)}?{url.partition('?')[2]}"
    return cache / "gradscope" / "places" / hashlib.sha256(name.encode()).hexdigest()[:20]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

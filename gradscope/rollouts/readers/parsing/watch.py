"""How far a log is that is read row by row: bytes of its files and rows, told to who waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradscope.progress import ProgressCallback
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

_MEGABYTE = 1 << 20


class WatchedLog(QuarantineLog):
    """What a reading sets aside, which also tells how far it is."""

    def __init__(self, progress: ProgressCallback, files: Sequence[Path]) -> None:
        """Nothing is read yet.

        Args:
            progress: Told after each megabyte how many are done, of how many, and how many rows there were so far.
            files: What will be read. A file that is read twice does not count twice.
        """
        super().__init__()
        self._progress = progress
        self._num_bytes = sum(file.stat().st_size for file in files)
        self._num_rows = self._done = 0
        self._due = _MEGABYTE

    def passed(self, num_bytes: int, num_rows: int = 1) -> None:
        """Counts what was read, and tells of it after each megabyte."""
        self._num_rows += num_rows
        self._done += num_bytes
        if self._done >= self._due:
            self._due = self._done + _MEGABYTE
            done = min(self._done, self._num_bytes)
            self._progress(done // _MEGABYTE, self._num_bytes // _MEGABYTE, f"MB read, {self._num_rows:,} rows")

"""What was read of a log that is still being written, so that another look reads what was appended and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import EarlierLooks
from gradscope.rollouts.readers.reduction.parts import Part

_MARK = 256
"""Bytes at the start of a file, and before the place where reading stopped, by which it is known again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSoFar:
    """How far a file of JSON lines was read."""

    end: int
    """Bytes: the end of its last whole line."""
    num_lines: int
    """Lines up to there."""
    inode: int
    """The file's number in its file system: a file that replaces it has another."""
    written: int
    """When it was last written, in nanoseconds."""
    marks: tuple[bytes, bytes]
    """Its first bytes, and the last that were read."""


class ReadSoFar(EarlierLooks):
    """The parts of a log from one look to the next; nothing is kept of a log with other files than plain JSON lines."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self.files: dict[Path, FileSoFar] = {}
        self.parts: list[Part] = []
        self.set_aside = QuarantineLog()

    def check(self, files: Sequence[Path], keys: tuple[str, ...]) -> None:
        """Forget everything where the log is not the one that was read, grown longer.

        Args:
            files: Its files, in order.
            keys: What is read of its rows.
        """
        known = list(self.files)
        if keys != self._keys or known != list(files[: len(known)]) or not all(map(self._has_grown, known)):
            self.forget()
        self._keys = keys

    def keep(self, path: Path, end: int, num_lines: int, part: Part | None) -> None:
        """Take in what came of a block of a file, which ends with a whole line: its end, and its lines."""
        self.parts += [] if part is None else [part]
        before, stat = self.files.get(path), path.stat()
        self.files[path] = FileSoFar(
            end=end,
            num_lines=num_lines + (0 if before is None else before.num_lines),
            inode=stat.st_ino,
            written=stat.st_mtime_ns,
            marks=_marks(path, end),
        )

    def _has_grown(self, path: Path) -> bool:
        try:
            stat = path.stat()
            known = self.files[path]
            is_longer = stat.st_size > known.end
            return (
                path.suffix not in COMPRESSED
                and stat.st_ino == known.inode
                and (is_longer or (stat.st_size, stat.st_mtime_ns) == (known.end, known.written))
                and _marks(path, known.end) == known.marks
            )
        except OSError:
            return False


def _marks(path: Path, end: int) -> tuple[bytes, bytes]:
    with path.open("rb") as stream:
        first = stream.read(min(_MARK, end))
        stream.seek(max(0, end - _MARK))
        return first, stream.read(min(_MARK, end))

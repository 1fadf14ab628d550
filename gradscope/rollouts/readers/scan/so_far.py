"""What was read of a log that is still being written, so that another look reads what was appended and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import EarlierLooks
from gradscope.rollouts.readers.scan.parts import Part
from gradscope.rollouts.readers.scan.prompts import Prompts
from gradscope.rollouts.readers.scan.workers import Piece

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
        self._columns: tuple[str, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self.files: dict[Path, FileSoFar] = {}
        self.parts: list[Part] = []
        self.set_aside = QuarantineLog()
        self.prompts = Prompts()

    def check(self, files: Sequence[Path], columns: tuple[str, ...]) -> None:
        """Forget everything where the log is not the one that was read, grown longer.

        Args:
            files: Its files, in order.
            columns: The columns that its parts have.
        """
        known = list(self.files)
        if columns != self._columns or known != list(files[: len(known)]) or not all(map(self._has_grown, known)):
            self.forget()
        self._columns = columns

    def keep(self, pieces: Sequence[Piece], lines_of_piece: Sequence[int], parts: Sequence[Part]) -> None:
        """Take in what came of some pieces, which end with whole lines."""
        self.parts += parts
        for piece, count in zip(pieces, lines_of_piece, strict=True):
            before, stat = self.files.get(piece.path), piece.path.stat()
            self.files[piece.path] = FileSoFar(
                end=piece.end,
                num_lines=count + (0 if before is None else before.num_lines),
                inode=stat.st_ino,
                written=stat.st_mtime_ns,
                marks=_marks(piece.path, piece.end),
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

"""Text cut into lines: blocks of a stream, and where in a block each line stands."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_LINE_END, _COMMA = ord("\n"), ord(",")
_CLOSED = ord("]") | 0x20
"""Both closing brackets with this bit set: ``]`` becomes ``}``."""
_BLANKS = np.frombuffer(b" \t\r", dtype=np.uint8)
_CACHED = 1 << 18
"""Bytes that are looked at at once: few enough for a processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of a block, of one piece of a file or of several."""

    pieces: tuple[bytes, ...]
    """Each with an end of line."""
    starts: tuple[NDArray[np.int64], ...]
    """Where each line of a piece starts, and where the last one ends, [1 + lines] a piece."""
    first: NDArray[np.int64]
    """The number of each piece's first line, and that of all lines, [1 + pieces]."""
    open_lines: frozenset[int]
    """Lines that had no end of line: the last of their files."""

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> Lines:
        """The lines of some pieces, none of them empty."""
        is_open = [not piece.endswith(b"\n") for piece in pieces]
        closed = tuple(piece + b"\n" if cut else piece for piece, cut in zip(pieces, is_open, strict=True))
        starts = tuple(np.append(0, _places(piece, _is_line_end) + 1) for piece in closed)
        first = np.cumsum([0, *(len(of_piece) - 1 for of_piece in starts)])
        return cls(
            pieces=closed,
            starts=starts,
            first=first,
            open_lines=frozenset((first[1:][is_open] - 1).tolist()),
        )

    @property
    def lines_of_piece(self) -> tuple[int, ...]:
        """How many lines each piece has."""
        return tuple(np.diff(self.first).tolist())

    def with_commas(self) -> NDArray[np.int64]:
        """Lines with a comma before a closing bracket, which DuckDB lets pass and JSON does not; ascending."""
        return np.concatenate(
            [
                first + np.searchsorted(starts, _commas(piece), side="right") - 1
                for piece, starts, first in zip(self.pieces, self.starts, self.first[:-1], strict=True)
            ]
        )

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, at: int) -> bytes:
        piece = bisect_right(self.first, at) - 1
        start, end = self.starts[piece][at - self.first[piece] :][:2]
        return self.pieces[piece][start : end - (at in self.open_lines)]

    def to_arrow(self, steps: Sequence[int | None] | None = None) -> pa.Table:
        """The lines as a table.

        Args:
            steps: The step of each piece's file, [pieces].

        Returns:
            ``line``, which shares the pieces' memory, and ``file_step`` where steps are given.
        """
        texts = [
            pa.LargeStringArray.from_buffers(len(starts) - 1, pa.py_buffer(starts), pa.py_buffer(piece))
            for piece, starts in zip(self.pieces, self.starts, strict=True)
        ]
        columns = {"line": pa.chunked_array(texts)}
        if steps is not None:
            told = [pa.scalar(step, pa.int64()) for step in steps]
            of_lines = [pa.repeat(step, count) for step, count in zip(told, self.lines_of_piece, strict=True)]
            columns["file_step"] = pa.chunked_array(of_lines)
        return pa.table(columns)


def whole_lines(read: Callable[[int], bytes], size: int, longest: int = sys.maxsize) -> Iterator[bytes]:
    """Blocks of whole lines from a stream; the last may lack its end of line.

    Args:
        read: Gives at most so many next bytes, none at the end.
        size: Bytes of a block, more where a line is longer.

        longest: Bytes that a line may have.

    Yields:
        The blocks.

    Raises:
        ValueError: A line is longer.
    """
    rest: list[bytes] = []
    while more := read(size):
        end = more.rfind(b"\n") + 1
        block, tail = memoryview(more)[:end], more[end:]
        if end:
            # of what was read no other copy is kept meanwhile
            more = b"".join((*rest, block)) if rest or tail else more
            del block
            rest = []
            yield more
        if tail:
            rest.append(tail)
            if sum(map(len, rest)) > longest:
                raise ValueError("a line is too long")
    if rest:
        yield b"".join(rest)


def _is_line_end(letters: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(letters == _LINE_END)


def _is_closing(letters: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray((letters | 0x20) == _CLOSED)


def _commas(data: bytes) -> NDArray[np.int64]:
    """Where commas before a closing bracket stand."""
    letters = np.frombuffer(data, dtype=np.uint8)
    before = _places(data, _is_closing) - 1
    while len(blank := np.flatnonzero(np.isin(letters[before], _BLANKS) & (before > 0))):
        before[blank] -= 1
    return np.asarray(before[letters[before] == _COMMA])


def _places(data: bytes, is_there: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Where letters stand, ascending."""
    letters = np.frombuffer(data, dtype=np.uint8)
    parts = range(0, len(letters), _CACHED)
    return np.concatenate([np.flatnonzero(is_there(letters[at : at + _CACHED])) + at for at in parts])

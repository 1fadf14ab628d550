"""Text cut into lines: blocks of a stream, and where in a block each line stands."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_LINE_END, _COMMA, _COLON, _QUOTE, _ESCAPE = map(ord, '\n,:"\\')
_CLOSED = ord("]") | 0x20
"""Both closing brackets with this bit set: ``]`` becomes ``}``."""
_IS_BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\r", dtype=np.uint8))
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
    with_commas: NDArray[np.int64]
    """Lines with a comma before a closing bracket, which DuckDB lets pass and JSON does not; ascending."""
    num_keys: NDArray[np.int64]
    """Keys of each line, those of the objects within it too, [lines]: no fewer, and more where a text begins with a
    colon or has one behind backslashes and a quote."""

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> Lines:
        """The lines of some pieces, none of them empty."""
        is_open = [not piece.endswith(b"\n") for piece in pieces]
        closed = tuple(piece + b"\n" if cut else piece for piece, cut in zip(pieces, is_open, strict=True))
        starts, with_commas, num_keys = zip(*map(_cut, closed), strict=True)
        first = np.cumsum([0, *(len(of_piece) - 1 for of_piece in starts)])
        return cls(
            pieces=closed,
            starts=starts,
            first=first,
            open_lines=frozenset((first[1:][is_open] - 1).tolist()),
            with_commas=np.concatenate([at + before for at, before in zip(with_commas, first[:-1], strict=True)]),
            num_keys=np.concatenate(num_keys),
        )

    @property
    def lines_of_piece(self) -> tuple[int, ...]:
        """How many lines each piece has."""
        return tuple(np.diff(self.first).tolist())

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


def _cut(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where the lines of a text start and the last one ends, which have a comma before a bracket, and their keys."""
    letters = np.frombuffer(data, dtype=np.uint8)
    places = _marks(letters)
    marks = letters[places]
    is_end = marks == _LINE_END
    starts = np.append(0, places[is_end] + 1)
    closed = _before(letters, places[marks >= ord("]")])
    commas = np.searchsorted(starts, closed[letters[closed] == _COMMA], side="right") - 1
    num_keys = np.zeros(len(places), dtype=np.int64)
    is_colon = marks == _COLON
    num_keys[is_colon] = _ends_key(letters, _before(letters, places[is_colon]))
    return starts, commas, np.diff(np.cumsum(num_keys)[is_end], prepend=0)


def _marks(letters: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where ends of lines, colons and closing brackets stand, ascending."""
    found = []
    for at in range(0, len(letters), _CACHED):
        some = letters[at : at + _CACHED]
        is_mark = (some == _LINE_END) | (some == _COLON) | ((some | 0x20) == _CLOSED)
        found.append(np.flatnonzero(is_mark) + at)
    return np.concatenate(found)


def _before(letters: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the last letter before each place stands that is no blank; -1, the end of the last line, where none is."""
    before = places - 1
    while len(blank := np.flatnonzero(_IS_BLANK[letters[before]])):
        before[blank] -= 1
    return before


def _ends_key(letters: NDArray[np.uint8], before: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether letters before colons are quotes that end a text: a quote in a text is escaped."""
    is_escaped = (letters[before - 1] == _ESCAPE) & (letters[before - 2] != _ESCAPE)
    return np.asarray((letters[before] == _QUOTE) & ~is_escaped)

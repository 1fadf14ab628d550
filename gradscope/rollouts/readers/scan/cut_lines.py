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
_RUN = 64
"""Blanks in a row that are passed over for many places at once; longer runs, which nobody writes, one by one."""
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
    ends, commas, num_keys = [], [], []
    num_before = 0
    for at in range(0, len(letters), _CACHED):
        some = letters[at : at + _CACHED]
        is_mark = (some == _LINE_END) | (some == _COLON) | ((some | 0x20) == _CLOSED)
        places = np.flatnonzero(is_mark) + at
        marks, before = letters[places], _before(letters, places)
        is_end = marks == _LINE_END
        is_key = (marks == _COLON) & _ends_key(letters, before)
        ends.append(places[is_end])
        num_keys.append(num_before + np.cumsum(is_key)[is_end])
        commas.append(places[(letters[before] == _COMMA) & (marks >= ord("]"))])
        num_before += int(is_key.sum())
    starts = np.append(0, np.concatenate(ends) + 1)
    with_commas = np.searchsorted(starts, np.concatenate(commas), side="right") - 1
    return starts, with_commas, np.diff(np.concatenate(num_keys), prepend=0)


def _before(letters: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the last letter before each place stands that is no blank; -1, the end of the last line, where none is."""
    before = places - 1
    blank = np.flatnonzero(_IS_BLANK[letters[before]])
    for _ in range(_RUN):
        if not len(blank):
            return before
        before[blank] -= 1
        blank = blank[_IS_BLANK[letters[before[blank]]]]
    for at in blank.tolist():
        before[at] = _last_letter(letters, int(before[at]))
    return before


def _last_letter(letters: NDArray[np.uint8], end: int) -> int:
    """Where the last letter up to a place stands that is no blank; -1 where none is."""
    size = _RUN
    while end >= 0:
        start = max(0, end + 1 - size)
        found = np.flatnonzero(~_IS_BLANK[letters[start : end + 1]])
        if len(found):
            return start + int(found[-1])
        end, size = start - 1, 2 * size
    return -1


def _ends_key(letters: NDArray[np.uint8], before: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether letters before colons are quotes that end a text: a quote in a text is escaped."""
    one, two = (letters.take(before - back, mode="wrap") for back in (1, 2))
    is_escaped = (one == _ESCAPE) & (two != _ESCAPE)
    return np.asarray((letters[before] == _QUOTE) & ~is_escaped)

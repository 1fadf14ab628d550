"""Where the rows of each step lie in a log, so that one step can be read back without the others.

Kept as a stretch a step and piece of a file, and never a row: a log that goes from step to step has about as many as it
has pieces and steps.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED, parse_line, read_span
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.scan.cut_lines import Lines
from gradscope.rollouts.readers.scan.workers import LineBlock

Counts = NDArray[np.int64]

_MOST_TIMES = 4
"""How often a log may be read where all its steps are read one by one: of one whose steps lie mixed, or are in a
compressed file together, reading all rows at once costs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a file that holds rows of a step, and maybe others between them."""

    file: int
    """The file's number within the log."""
    start: int = 0
    """Its first byte; of a compressed file, decompressed."""
    end: int | None = None
    """The byte behind its last; None: it is all of a file that is not of JSON lines."""
    line: int = 1
    """The number of its first line."""


class StepSpans:
    """The spans of each step, in the order of the log."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[Span]] = {}

    def add_lines(self, block: LineBlock, lines: Lines, numbers: Counts, rows: Counts, step: Counts) -> None:
        """Take in some lines of the next block.

        Args:
            lines: All its lines.
            numbers: Their numbers within their files, from 0, [lines].
            rows: Which of them hold rows, in any order, [R].
            step: The steps of these, [R].
        """
        order = np.argsort(rows, kind="stable")
        rows, (steps, code) = rows[order], np.unique(step[order], return_inverse=True)
        key = (np.searchsorted(lines.first, rows, side="right") - 1) * len(steps) + code
        first, last = np.unique(key, return_index=True)[1], np.unique(key[::-1], return_index=True)[1]
        ends = rows[len(rows) - 1 - last].tolist()
        for at, top, bottom in zip(key[first].tolist(), rows[first].tolist(), ends, strict=True):
            number, of_step = divmod(at, len(steps))
            piece, starts, before = block.pieces[number], lines.starts[number], int(lines.first[number])
            start = piece.end - len(piece.data)
            span = Span(
                file=piece.file,
                start=start + int(starts[top - before]),
                end=min(start + int(starts[bottom - before + 1]), piece.end),
                line=int(numbers[top]) + 1,
            )
            self._of_step.setdefault(int(steps[of_step]), []).append(span)

    def add_file(self, file: int, step: Counts) -> None:
        """Take in a file of another kind, or some of its rows: the steps of its groups, [j]."""
        for number in np.unique(step).tolist():
            self._of_step.setdefault(number, []).append(Span(file=file))

    def is_cheap(self, files: Sequence[Path]) -> bool:
        """Whether reading every step of the log by itself costs about as much as reading the log."""
        lengths = dict.fromkeys(range(len(files)), 0)
        cost = 0
        for span in (span for spans in self._of_step.values() for span in spans):
            end = files[span.file].stat().st_size if span.end is None else span.end
            lengths[span.file] = max(lengths[span.file], end)
            cost += end - (0 if files[span.file].suffix in COMPRESSED else span.start)
        return cost <= _MOST_TIMES * sum(lengths.values())

    def rows_around(
        self, step: int, files: Sequence[Path], rows: Callable[[Path, QuarantineLog], Iterable[Row]]
    ) -> Iterator[tuple[Path, Row]]:
        """The rows of a step in the order of the log, and those between them.

        Args:
            files: The files of the log.
            rows: The rows of a file that is not of JSON lines.

        Yields:
            Each row with its file.
        """
        for span in self._of_step.get(step, ()):
            file = files[span.file]
            if span.end is None:
                yield from ((file, row) for row in rows(file, QuarantineLog()))
            else:
                yield from ((file, row) for row in _lines_in(file, span.start, span.end, span.line))


def _lines_in(file: Path, start: int, end: int, first: int) -> Iterator[Row]:
    for number, line in enumerate(io.BytesIO(read_span(file, start, end)), start=first):
        row = parse_line(line)
        if not isinstance(row, str):
            yield f"{file}:{number}", row

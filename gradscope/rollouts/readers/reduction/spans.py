"""Where the rows of each step lie in a log, so that one step can be read back without all the rest.

Stored as a stretch a step and piece of a file, and never a row: a log that goes from step to step has about as many as
it has pieces and steps.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.readers.parsing.jsonl import COMPRESSED, parse_line, read_span
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.reduction.lines import Span

Counts = NDArray[np.int64]

_MOST_TIMES = 4
"""How often a log may be read where all its steps are read one by one: of one whose steps lie mixed, or are in a
compressed file together, reading all rows at once costs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A stretch of a file that holds rows of a step, and maybe others between them."""

    file: int  # the file's number within the log
    start: int = 0  # its first byte; of a compressed file, decompressed
    end: int | None = None  # the byte behind its last; None: it is all of a file that is not of JSON lines
    line: int = 1  # the number of its first line


class StepSpans:
    """The spans of each step, in the order of the log."""

    def __init__(self) -> None:
        self._of_step: dict[int, list[_Stretch]] = {}

    def add(self, file: int, first: int, usual: Iterable[Span], odd: Iterable[Span]) -> None:
        """Take in the next block: lines before it in its file, where each step's usual rows lie, and each odd row."""
        of_step = {span.step: span for span in usual}
        for span in odd:
            span_of_step = of_step.get(span.step, span)
            of_step[span.step] = Span(
                step=span.step,
                start=min(span_of_step.start, span.start),
                end=max(span_of_step.end, span.end),
                line=min(span_of_step.line, span.line),
            )
        for span in of_step.values():
            stretch = _Stretch(file=file, start=span.start, end=span.end, line=first + span.line + 1)
            self._of_step.setdefault(span.step, []).append(stretch)

    def add_file(self, file: int, step: Counts) -> None:
        """Take in a file of another kind, or some of its rows: the steps of its groups, [j]."""
        for number in np.unique(step).tolist():
            stretches = self._of_step.setdefault(number, [])
            if not stretches or stretches[-1] != _Stretch(file=file):
                stretches.append(_Stretch(file=file))

    def is_cheap(self, files: Sequence[Path], steps: Container[int] | None = None) -> bool:
        """Whether reading some steps of the log each by itself, or every one, costs about as much as reading it."""
        lengths = dict.fromkeys(range(len(files)), 0)
        cost = 0
        for span in (span for step, spans in self._of_step.items() if steps is None or step in steps for span in spans):
            end = files[span.file].stat().st_size if span.end is None else span.end
            lengths[span.file] = max(lengths[span.file], end)
            cost += end - (0 if files[span.file].suffix in COMPRESSED else span.start)
        return cost <= _MOST_TIMES * sum(lengths.values())

    def rows_around(
        self, step: int, files: Sequence[Path], rows: Callable[[Path, QuarantineLog], Iterable[Row]]
    ) -> Iterator[tuple[Path, Row]]:
        """The rows of a step in the order of the log, and those between them; each row with its file."""
        for span in self._of_step.get(step, ()):
            file = files[span.file]
            if span.end is None:
                yield from ((file, row) for row in rows(file, QuarantineLog()))
            else:
                yield from ((file, row) for row in _lines_in(file, span.start, span.end, span.line))


class NoSpans(StepSpans):
    """Takes in nothing: of a million steps the spans would take more memory than their rewards."""

    def add(self, file: int, first: int, usual: Iterable[Span], odd: Iterable[Span]) -> None:
        """Nobody will ask for the rows."""

    def add_file(self, file: int, step: Counts) -> None:
        """Nobody will ask for the rows."""


def _lines_in(file: Path, start: int, end: int, first: int) -> Iterator[Row]:
    for number, line in enumerate(io.BytesIO(read_span(file, start, end)), start=first):
        row = parse_line(line)
        if not isinstance(row, str):
            yield f"{file}:{number}", row

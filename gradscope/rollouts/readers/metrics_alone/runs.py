"""The runs in rows of metrics, separated by their names and where steps begin again.

Rows of the same step are merged; a later number replaces an earlier one. Steps that go back to one that was logged
with other numbers are a run that was resumed, whose later rows count, or, from the first step on, another run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

import numpy as np

from gradscope.rollouts.readers.metrics_alone.files import STEP_IS_POSITION
from gradscope.rollouts.readers.metrics_alone.rows import (
    BAD_STEP,
    NO_STEP,
    Piece,
    by_run,
    numbers_by_key,
    steps_in,
    unpivoted,
)
from gradscope.rollouts.readers.parsing.cells import LARGEST_STEP
from gradscope.rollouts.step_metrics import Counts, Floats, Numbers, StepMetrics

STEPS = (
    *("train/global_step", "global_step", "step", "training_step", "rollout/step", "train/step"),
    *("global_step/max_steps", "current_steps", "training/global_step", "trainer/global_step", "iteration"),
    *("progress/batch", "Step", "_step"),
)
"""Columns of steps: the trainer's own count before that of a logger, which counts its calls. ms-swift's is ``3/30``."""
_RUNS = ("run_name", "run_id", "run", "_run", "experiment_name", "experiment", "exp_name")
"""Columns that name the run of a row."""
_NONE = np.zeros(0, dtype=np.int64)
Values = TypeVar("Values", Counts, Floats)


@dataclass(slots=True)
class _Rows:
    """The rows under one name."""

    at: list[Counts] = field(default_factory=list)  # their indices among all rows
    steps: list[Counts] = field(default_factory=list)  # each as long
    numbers: dict[str, list[tuple[Counts, Floats]]] = field(default_factory=dict)
    """Key -> indices of the rows that have it, and its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """One run in the rows."""

    name: str
    metrics: Callable[[], StepMetrics]  # computes its metrics by step
    num_rows: int
    first: str  # location of its first row
    sentences: tuple[str, ...]  # where it was resumed


@dataclass(slots=True, kw_only=True)
class _Part:
    """Rows from ``start`` to ``stop`` of a name, which are one run."""

    start: int
    stop: int
    resumed: list[int] = field(default_factory=list)
    """Rows at which it was resumed; earlier rows of their step and later ones no longer count."""


class RunRows:
    """The rows read so far."""

    def __init__(self) -> None:
        self.num_without_step = 0
        self.num_conflicts = 0  # rows that contradict the previous row of the same step
        self.counts_steps = False
        self._rows: dict[str, _Rows] = {}
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._size = 0

    def add(self, piece: Piece, keys: tuple[str, ...]) -> Counts:
        """Add rows; those without a step are only counted.

        Returns:
            Indices in the piece of rows whose step is no step, ascending.
        """
        bad = [_NONE]
        for wide in piece.tables:
            for table in (named for long in unpivoted(wide) for named in by_run(long, _RUNS)):
                steps = steps_in(table, keys)
                self.num_without_step += int(np.count_nonzero(steps == NO_STEP))
                bad.append(table.at[steps == BAD_STEP])
                has_step = steps >= 0
                if not has_step.all():
                    table, steps = table.take(np.flatnonzero(has_step)), steps[has_step]
                if not len(steps):
                    continue
                rows, at = self._rows.setdefault(table.run, _Rows()), table.at + self._size
                rows.at.append(at)
                rows.steps.append(steps)
                for key, with_key, values in numbers_by_key(table.columns, at):
                    if key == STEP_IS_POSITION:
                        self.counts_steps |= bool(values.any())
                    elif key not in keys and key not in STEPS:
                        rows.numbers.setdefault(key, []).append((with_key, values))
        self._pieces.append(piece)
        self._starts.append(self._size)
        self._size += len(piece.numbers)
        return np.unique(np.concatenate(bad))

    def runs(self) -> list[OneRun]:
        """The runs by their first row; a name shared by several, or a missing one, gets their number."""
        runs = [run for label in list(self._rows) for run in self._runs_of(label, self._rows.pop(label))]
        return [run for _, run in sorted(runs, key=itemgetter(0))]

    def _runs_of(self, label: str, rows: _Rows) -> Iterator[tuple[int, OneRun]]:
        """Each run with the index of its first row."""
        at, steps = _in_order([*zip(rows.at, rows.steps, strict=True)])
        numbers: dict[str, Numbers] = {}
        for key in list(rows.numbers):
            names, values = _in_order(rows.numbers.pop(key))  # popped, so that not all are in memory twice
            is_last = np.append(np.diff(names) > 0, True)
            indices = None if np.count_nonzero(is_last) == len(at) else np.searchsorted(at, names[is_last])
            numbers[key] = Numbers(indices, values[is_last])
        parts = self._parts(steps, numbers)
        for order, part in enumerate(parts, start=1):
            run = OneRun(
                name=f"{label}/{order}".removeprefix("/") if len(parts) > 1 or not label else label,
                metrics=partial(_metrics_of, part, steps, numbers),
                num_rows=part.stop - part.start,
                first=self._location(at[part.start]),
                sentences=tuple(
                    f"Resumed at step {steps[row]} ({self._location(at[row])}): "
                    "what was logged of later steps before counts no more."
                    for row in part.resumed
                ),
            )
            yield int(at[part.start]), run

    def _parts(self, steps: Counts, numbers: Mapping[str, Numbers]) -> list[_Part]:
        """Where runs begin, and where they were resumed."""
        part = _Part(start=0, stop=len(steps))
        parts = [part]
        if (np.diff(steps) > 0).all():
            return parts
        earlier = np.full(len(steps), -1)  # the last earlier row with another number at the same step
        for column in numbers.values():
            at = np.arange(len(steps)) if column.at is None else column.at
            order = np.argsort(steps[at], kind="stable")
            before, after = order[:-1], order[1:]
            first, second = column.values[before], column.values[after]
            is_other = (first != second) & ~(np.isnan(first) & np.isnan(second))
            is_other &= steps[at[before]] == steps[at[after]]
            np.maximum.at(earlier, at[after[is_other]], at[before[is_other]])
        stack: list[int] = []  # rows at which it was resumed, without those undone by a later one
        lowest, seen = LARGEST_STEP + 1, 0
        goes_back = np.append(False, np.diff(steps) <= 0) & (earlier >= 0)
        for row in np.flatnonzero(goes_back).tolist():
            step, other = int(steps[row]), int(earlier[row])
            resumed = bisect_right(stack, other)
            if other < part.start or (resumed < len(stack) and steps[stack[resumed]] <= step):
                continue  # the earlier row no longer counts
            if step == steps[row - 1]:
                self.num_conflicts += 1
                continue
            lowest, seen = min(lowest, int(steps[seen:row].min())), row
            if step <= lowest:
                part.stop, part = row, _Part(start=row, stop=len(steps))
                parts.append(part)
                stack, lowest = [], LARGEST_STEP + 1
            else:
                while stack and steps[stack[-1]] >= step:
                    stack.pop()
                stack.append(row)
                part.resumed.append(row)
        return parts

    def _location(self, number: int) -> str:
        piece = bisect_right(self._starts, number) - 1
        return self._pieces[piece].location(number - self._starts[piece])


def _in_order(parts: list[tuple[Counts, Values]]) -> tuple[Counts, Values]:
    """Rows and their values, sorted by row."""
    at, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    if (np.diff(at) >= 0).all():
        return at, values
    order = np.argsort(at, kind="stable")
    return at[order], values[order]


def _metrics_of(part: _Part, steps: Counts, numbers: Mapping[str, Numbers]) -> StepMetrics:
    """The last number of each key and step."""
    ends = np.full(len(steps) + 1, LARGEST_STEP + 1)  # the lowest step at which it was resumed after a row
    ends[part.resumed] = steps[part.resumed]
    counts = steps < np.minimum.accumulate(ends[::-1])[::-1][1:]
    counts[: part.start] = counts[part.stop :] = False
    counted = steps[counts]
    distinct = counted if (np.diff(counted) > 0).all() else np.unique(counted)
    columns = {}
    for key, column in numbers.items():
        chosen = counts if column.at is None else counts[column.at]
        at, values = (steps if column.at is None else steps[column.at])[chosen], column.values[chosen]
        if not (np.diff(at) > 0).all():
            order = np.argsort(at, kind="stable")
            order = order[np.append(np.diff(at[order]) > 0, True)]
            at, values = at[order], values[order]
        if len(at):
            columns[key] = Numbers(None if len(at) == len(distinct) else np.searchsorted(distinct, at), values)
    return StepMetrics(distinct, columns)

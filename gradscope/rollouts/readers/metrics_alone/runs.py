"""Rows of metrics as columns, and the runs in them, separated by their names and where steps begin again.

Rows with the same keys form a table, and are converted to numbers by column. Rows of the same step are merged; a later
number replaces an earlier one. Steps that go back to one that was logged with other numbers are a run that was resumed,
whose later rows count, or, from the first step on, another run.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.outside.numerals import number_from
from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.arrays import Counts, Floats
from gradscope.rollouts.readers.column_roles import RUNS, USUAL, are_held_out, held_out_columns
from gradscope.rollouts.readers.parsing.cells import LARGEST_STEP, is_number, logged_number, text_of
from gradscope.rollouts.readers.parsing.records import are_turns
from gradscope.rollouts.readers.reduction.numbers import step_numbers
from gradscope.rollouts.run import Numbers, StepMetrics

Column = Numbers | Sequence[Any]
"""The cells of rows, or those of them that are numbers."""

_UNNAMED = ("data", "metrics", *(f"{kind}_metrics" for kind in ("ppo", "grpo", "rl", "train", "training", "step")))
"""Objects whose own keys are metrics, as verl's logger writes them."""
_MAX_NUMBERS = 4  # in a row of a long table: its value, step, epoch and time; more are metrics of their own
_LONG_NAMES = ("metric", "metric_name", "name", "key", "tag", "variable")
_WORDS = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}  # of Python -> of JSON
NO_STEP, BAD_STEP = -1, -2
STEP_IS_POSITION = "gradscope/step_is_place"  # key of a row whose step is its position among the rows of a console


class MetricTable(Struct, frozen=True, kw_only=True):
    """R rows of a piece of a file that have the same keys."""

    rows: Counts  # their indices in the piece, ascending, [R]
    columns: Mapping[str, Column]  # key -> cells
    run: str = ""  # their run, where the file names one outside the cells

    def take(self, rows: Counts) -> MetricTable:
        """The rows with these indices."""
        indices = rows.tolist()
        columns = {
            key: cells.take(rows) if isinstance(cells, Numbers) else [cells[index] for index in indices]
            for key, cells in self.columns.items()
        }
        return replace(self, rows=self.rows[rows], columns=columns)


class Piece(Struct, frozen=True, kw_only=True):
    """Consecutive rows of a file."""

    source: str  # the file, or a part of it
    numbers: Counts  # the line or entry number of each row
    tables: Sequence[MetricTable]  # the rows; one that several runs share is in several tables

    def location(self, row: int) -> str:
        """The ``file:line`` of a row."""
        return f"{self.source}:{self.numbers[row]}"


def as_tables(rows: Sequence[Mapping[str, Any]], runs: Sequence[str] = ()) -> list[MetricTable]:
    """Tables of the rows that share a run and their keys."""
    rows_of: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    keys_of = list(zip(runs or repeat(""), map(tuple, rows), strict=False))
    if len(set(keys_of)) == 1:
        rows_of[keys_of[0]] = list(range(len(rows)))
    else:
        for row, key in enumerate(keys_of):
            rows_of.setdefault(key, []).append(row)
    return [
        MetricTable(
            rows=np.array(indices, dtype=np.int64),
            columns={key: [rows[row][key] for row in indices] for key in keys},
            run=run,
        )
        for (run, keys), indices in rows_of.items()
    ]


def numbers_by_key(
    columns: Mapping[str, Column], index: Counts, prefix: str = ""
) -> Iterator[tuple[str, Counts, Floats]]:
    """The numbers in rows, those in an object, or its text, under its key and theirs; NaN and infinity count, as words.

    Yields:
        Key, the rows that have a number, as elements of ``index`` [R], and the numbers.
    """
    for key, cells in columns.items():
        objects = [] if isinstance(cells, Numbers) else list(_objects_in(cells))
        for table in as_tables([cell for _, cell in objects]):
            names = index[np.array([row for row, _ in objects])[table.rows]]
            yield from numbers_by_key(table.columns, names, prefix if key in _UNNAMED else f"{prefix}{key}/")
        series = _series(cells)
        if len(series.values):
            yield f"{prefix}{key}", index if series.rows is None else index[series.rows], series.values


def _objects_in(cells: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects, and dictionaries that were written as text."""
    for row in _indices_of(cells, dict, str):
        if not isinstance(cell := cells[row], str):
            yield row, cell
        elif cell.startswith("{"):
            words = re.sub(r"(?<=: )(-?)(nan|inf|None|True|False)\b", lambda word: word[1] + _WORDS[word[2]], cell)
            with suppress(ValueError):
                yield row, parse_json(words.replace("'", '"'))


def _indices_of(cells: Sequence[Any], *kinds: type) -> list[int]:
    """Indices of the cells of a type; most columns have none."""
    if set(kinds).isdisjoint(map(type, cells)):
        return []
    return [index for index, cell in enumerate(cells) if type(cell) in kinds]


def _series(cells: Column) -> Numbers:
    if isinstance(cells, Numbers):
        return cells
    if {int, float}.issuperset(map(type, cells)):
        try:
            return Numbers(None, np.array(cells, dtype=np.float64))
        except OverflowError:  # an integer beyond all floats
            pass
    numbers: list[float | None] = []
    for cell in cells:
        try:
            numbers.append(number_from(cell) if isinstance(cell, str) else logged_number(cell))
        except ValueError:
            numbers.append(None)
    rows = [index for index, number in enumerate(numbers) if number is not None]
    return Numbers(np.array(rows, dtype=np.int64), np.array([numbers[index] for index in rows], dtype=np.float64))


_ROLLOUT_COLUMNS = (
    *("prompt", "prompts", "completion", "completions", "response", "responses"),
    *("output", "messages", "question", "text", "action", "answer", "generation", "solution", "reasoning"),
    *("observation", "thought", "tool", "tool_name", "tool_call"),
)
"""Columns that hold text where a row is a rollout, or a turn of one."""


def hold_rollouts(columns: Mapping[str, Column]) -> bool:
    """Whether a column that is usual for rollouts has texts or lists, or objects of these, or rows are turns."""
    cells_of = {key: cells for key, cells in columns.items() if not isinstance(cells, Numbers)}
    usual = [cells_of[key] for key in _ROLLOUT_COLUMNS if key in cells_of]
    nested = [list(cells[index].values()) for cells in usual for index in _indices_of(cells, dict)]
    return are_turns(cells_of) or any(_indices_of(cells, str, list) for cells in (*usual, *nested))


def steps_in(table: MetricTable, keys: Iterable[str]) -> Counts:
    """The step of each row, from the first of these columns that it has; else NO_STEP or BAD_STEP."""
    steps = np.full(len(table.rows), NO_STEP)
    for key in keys:
        if key in table.columns:
            steps = np.where(steps == NO_STEP, _steps(table.columns[key], len(steps)), steps)
    return steps


def _steps(cells: Column, size: int) -> Counts:
    if isinstance(cells, Numbers):
        steps = np.full(size, NO_STEP)
        steps[slice(None) if cells.rows is None else cells.rows] = _from_floats(cells.values)
        return steps
    if {float}.issuperset(map(type, cells)):
        return _from_floats(np.array(cells))
    steps = step_numbers(cells)
    if steps.min(initial=0) < 0:
        return np.where(steps < 0, [NO_STEP if cell in (None, "") else BAD_STEP for cell in cells], steps)
    return steps


def _from_floats(values: Floats) -> Counts:
    is_step = (values >= 0) & (values <= LARGEST_STEP) & (values == np.floor(values))
    return np.where(is_step, values, BAD_STEP).astype(np.int64)


def unpivoted(table: MetricTable) -> list[MetricTable]:
    """Rows of a long table, ``step, metric, value``, as tables with a column for the metric; other rows as they are."""
    keys = [key for key in _LONG_NAMES if key in table.columns and not isinstance(table.columns[key], Numbers)]
    if "value" not in table.columns or not keys:
        return [table]
    num_numbers = np.zeros(len(table.rows))
    for cells in table.columns.values():
        is_full = isinstance(cells, Numbers) and cells.rows is None
        indices = cells.rows if isinstance(cells, Numbers) else np.flatnonzero(list(map(is_number, cells)))
        num_numbers[slice(None) if is_full else indices] += 1
    rows: dict[tuple[str, str] | None, list[int]] = {}
    texts = [cells for key in keys if not isinstance(cells := table.columns[key], Numbers)]
    for row, names in enumerate(zip(*texts, strict=True)):
        named = ((key, name) for key, name in zip(keys, names, strict=True) if isinstance(name, str))
        is_long = num_numbers[row] <= _MAX_NUMBERS
        rows.setdefault(next(named, None) if is_long else None, []).append(row)
    tables = []
    for pair, members in rows.items():
        part = table.take(np.array(members))
        if pair is not None:
            columns = {key: cells for key, cells in part.columns.items() if key not in (pair[0], "value")}
            part = replace(part, columns={**columns, pair[1]: part.columns["value"]})
        tables.append(part)
    return tables


def by_run(table: MetricTable, keys: Iterable[str]) -> list[MetricTable]:
    """A table for each run, which the first of these columns with a text in a row names; a table with a run stays."""
    columns = (table.columns[key] for key in keys if key in table.columns)
    texts = [cells for cells in columns if not isinstance(cells, Numbers)]
    if table.run or not texts:
        return [table]
    rows: dict[str, list[int]] = {}
    for row, names in enumerate(zip(*texts, strict=True)):
        rows.setdefault(next((name for name in names if isinstance(name, str)), ""), []).append(row)
    parts = [(run, table if len(rows) == 1 else table.take(np.array(indices))) for run, indices in rows.items()]
    return [replace(part, run=run) for run, part in parts]


EVAL = "eval/"  # before the keys of rows of an evaluation


def by_purpose(table: MetricTable) -> list[tuple[str, MetricTable]]:
    """The rows of training and those of an evaluation, by what their texts say, each with a prefix for their keys."""
    cells_of = {key: cells for key in held_out_columns(table.columns) if isinstance(cells := table.columns[key], list)}
    held_out = are_held_out({key: map(text_of, cells) for key, cells in cells_of.items()})
    if not held_out.any():
        return [("", table)]
    return [(prefix, table.take(np.flatnonzero(rows))) for prefix, rows in (("", ~held_out), (EVAL, held_out))]


_STEPS = (
    *("train/global_step", "global_step", "step", "training_step", "rollout/step", "train/step"),
    *("global_step/max_steps", "current_steps", "training/global_step", "trainer/global_step", "iteration"),
    *(*USUAL["step"], "progress/batch", "Step", "_step"),
)
STEPS = tuple(dict.fromkeys(_STEPS))
"""Columns of steps: the trainer's own count before that of a logger, which counts its calls. ms-swift's is ``3/30``."""
_NO_ROWS = np.zeros(0, dtype=np.int64)
Values = TypeVar("Values", Counts, Floats)


@lru_cache(maxsize=1 << 12)
def is_step(key: str) -> bool:
    """Whether a column counts steps, by its name."""
    return key in STEPS or key.endswith(("/step", "/global_step", "/training_step"))


class _Rows(Struct):
    """The rows under one name."""

    rows: list[Counts] = []  # their indices among all rows
    steps: list[Counts] = []  # each as long
    numbers: dict[str, list[tuple[Counts, Floats]]] = {}
    """Key -> indices of the rows that have it, and its values."""


class OneRun(Struct, frozen=True, kw_only=True):
    """One run in the rows."""

    name: str
    metrics: Callable[..., StepMetrics]
    """Computes its metrics by step: the last number of each, or, with ``averaged=True``, the mean of those of its
    rows."""
    num_rows: int
    num_conflicts: int  # steps of which a row contradicts the previous one
    first: str  # location of its first row
    sentences: tuple[str, ...]  # where it was resumed


class _Part(Struct, kw_only=True):
    """Rows from ``start`` to ``stop`` of a name, which are one run."""

    start: int
    stop: int
    num_conflicts: int = 0
    resumed: list[int] = []
    """Rows at which it was resumed; earlier rows of their step and later ones no longer count."""


class RunRows:
    """The rows read so far."""

    def __init__(self, common_keys: Callable[[Iterable[str]], Collection[str]] = frozenset) -> None:
        """None yet; ``common_keys`` chooses those in which rows of one step may not contradict each other, if any."""
        self._common_keys = common_keys
        self.num_without_step = self.num_held_out = 0
        self.num_conflicts = 0  # steps of which a row contradicts the previous one
        self.counts_steps = False
        self._rows: dict[str, _Rows] = {}
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        self._size = 0

    def add(self, piece: Piece, keys: tuple[str, ...], names: tuple[str, ...] = RUNS) -> Counts:
        """Add rows, whose run one of the columns ``names`` names; those without a step are only counted.

        Returns:
            Indices in the piece of rows whose step is no step, ascending.
        """
        bad = [_NO_ROWS]
        for wide in piece.tables:
            named = (table for long in unpivoted(wide) for table in by_run(long, names))
            for prefix, table in chain.from_iterable(map(by_purpose, named)):
                self.num_held_out += len(table.rows) if prefix else 0
                steps = steps_in(table, keys)
                self.num_without_step += int(np.count_nonzero(steps == NO_STEP))
                bad.append(table.rows[steps == BAD_STEP])
                has_step = steps >= 0
                if not has_step.all():
                    table, steps = table.take(np.flatnonzero(has_step)), steps[has_step]
                if not len(steps):
                    continue
                rows, indices = self._rows.setdefault(table.run, _Rows()), table.rows + self._size
                rows.rows.append(indices)
                rows.steps.append(steps)
                for key, with_key, values in numbers_by_key(table.columns, indices):
                    if key == STEP_IS_POSITION:
                        self.counts_steps |= bool(values.any())
                    elif key not in keys and key not in STEPS:
                        rows.numbers.setdefault(prefix + key, []).append((with_key, values))
        self._pieces.append(replace(piece, tables=()))  # whose cells take ten times what their numbers do
        self._starts.append(self._size)
        self._size += len(piece.numbers)
        return np.unique(np.concatenate(bad))

    def runs(self) -> list[OneRun]:
        """The runs by their first row; a name shared by several, or a missing one, gets their number."""
        runs = [run for label in list(self._rows) for run in self._runs_of(label, self._rows.pop(label))]
        return [run for _, run in sorted(runs, key=itemgetter(0))]

    def _runs_of(self, label: str, rows: _Rows) -> Iterator[tuple[int, OneRun]]:
        """Each run with the index of its first row."""
        index, steps = _in_order([*zip(rows.rows, rows.steps, strict=True)])
        if all(key.startswith(EVAL) for key in rows.numbers):  # nothing but evaluations
            rows.numbers = {key.removeprefix(EVAL): values for key, values in rows.numbers.items()}
        numbers: dict[str, Numbers] = {}
        for key in list(rows.numbers):
            names, values = _in_order(rows.numbers.pop(key))  # popped, so that not all are in memory twice
            is_last = np.append(np.diff(names) > 0, True)
            indices = None if np.count_nonzero(is_last) == len(index) else np.searchsorted(index, names[is_last])
            numbers[key] = Numbers(indices, values[is_last])
        within_epochs, steps = steps, _across_epochs(steps, numbers)
        parts = self._parts(steps, numbers)
        rest = "what was logged of later steps before counts no more."
        for number, part in enumerate(parts, start=1):
            resumed = [f"at step {steps[row]} ({self._location(index[row])})" for row in part.resumed]
            sentences = [f"Resumed {resumption}: {rest}" for resumption in resumed]
            if len(resumed) > _MAX_RESUMES:
                sentences = [
                    f"Resumed {len(resumed)} times, as where several processes write one log: first {resumed[0]}, last "
                    f"{resumed[-1]}; {rest}"
                ]
            run = OneRun(
                name=f"{label}/{number}".removeprefix("/") if len(parts) > 1 or not label else label,
                metrics=partial(_metrics_of, part, steps, numbers),
                num_rows=part.stop - part.start,
                num_conflicts=part.num_conflicts,
                first=self._location(index[part.start]),
                sentences=(*(() if steps is within_epochs else (_STEPS_RESTART,)), *sentences),
            )
            yield int(index[part.start]), run

    def _parts(self, steps: Counts, numbers: Mapping[str, Numbers]) -> list[_Part]:
        """Where runs begin, and where they were resumed."""
        part = _Part(start=0, stop=len(steps))
        parts = [part]
        if (np.diff(steps) > 0).all():
            return parts
        earlier = np.full(len(steps), -1)  # the last earlier row with another number at the same step
        contradicts = np.zeros(len(steps), dtype=np.bool_)
        counted = self._common_keys(numbers) or numbers.keys()  # timings, say, have several rows a step
        for key, column in numbers.items():
            rows = np.arange(len(steps)) if column.rows is None else column.rows
            order = np.argsort(steps[rows], kind="stable")
            before, after = order[:-1], order[1:]
            first, second = column.values[before], column.values[after]
            is_other = (first != second) & ~(np.isnan(first) & np.isnan(second))
            is_other &= steps[rows[before]] == steps[rows[after]]
            np.maximum.at(earlier, rows[after[is_other]], rows[before[is_other]])
            contradicts[rows[after[is_other]]] |= key in counted
        is_back = np.append(False, np.diff(steps) < 0)
        begins = np.maximum.accumulate(np.where(is_back, np.arange(len(steps)), 0))  # since when steps do not go back
        conflicts = contradicts & (earlier >= begins)
        stack: list[int] = []  # rows at which it was resumed, without those undone by a later one
        lowest, seen = int(steps[0]), 0
        for row in np.flatnonzero((contradicts | is_back) & (earlier >= 0) & (earlier < begins)).tolist():
            begin, other = int(begins[row]), int(earlier[row])
            resumed = bisect_right(stack, other)
            if other < part.start or (resumed < len(stack) and steps[stack[resumed]] <= steps[row]):
                continue  # the earlier row no longer counts
            lowest, seen, step = int(steps[seen:begin].min(initial=lowest)), begin, int(steps[begin])
            if step <= lowest:
                part.stop, part = begin, _Part(start=begin, stop=len(steps))
                parts.append(part)
                stack, lowest = [], step
                continue
            if steps[row] > step or not contradicts[row]:  # only evaluated before its first update, say
                begin += int(np.argmax(steps[begin:] > step))
            while stack and steps[stack[-1]] >= steps[begin]:
                stack.pop()
            stack.append(begin)
            part.resumed.append(begin)
        for part in parts:
            part.num_conflicts = len(np.unique(steps[part.start : part.stop][conflicts[part.start : part.stop]]))
            self.num_conflicts += part.num_conflicts
        return parts

    def _location(self, number: int) -> str:
        piece = bisect_right(self._starts, number) - 1
        return self._pieces[piece].location(number - self._starts[piece])


_MAX_RESUMES = 6  # of a run whose resumptions are told one by one
_STEPS_RESTART = "Steps begin again with each epoch: a step is the place of its row among all."


def _across_epochs(steps: Counts, numbers: Mapping[str, Numbers]) -> Counts:
    """The places of rows in their run, from 1, where steps begin again with each epoch and nowhere else; else steps."""
    epochs = next((numbers[key].values for key in ("epoch", "Epoch", "train/epoch") if key in numbers), steps[:0])
    if len(epochs) != len(steps) or (epochs != np.floor(epochs)).any():
        return steps
    rises, begins = np.diff(epochs) > 0, np.diff(epochs) < 0
    descends = np.diff(steps) <= 0
    if not rises.any() or (rises != (descends & ~begins)).any():
        return steps
    starts = np.flatnonzero(np.append(True, begins))
    return np.arange(1, 1 + len(steps)) - np.repeat(starts, np.diff(starts, append=len(steps)))


def _in_order(parts: list[tuple[Counts, Values]]) -> tuple[Counts, Values]:
    """Rows and their values, sorted by row."""
    rows, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    if (np.diff(rows) >= 0).all():
        return rows, values
    order = np.argsort(rows, kind="stable")
    return rows[order], values[order]


def _metrics_of(part: _Part, steps: Counts, numbers: Mapping[str, Numbers], *, averaged: bool = False) -> StepMetrics:
    """The last number of each key and step, or the mean of its rows."""
    ends = np.full(len(steps) + 1, LARGEST_STEP + 1)  # the lowest step at which it was resumed after a row
    ends[part.resumed] = steps[part.resumed]
    counts = steps < np.minimum.accumulate(ends[::-1])[::-1][1:]
    counts[: part.start] = counts[part.stop :] = False
    counted = steps[counts]
    distinct = counted if (np.diff(counted) > 0).all() else np.unique(counted)
    columns = {}
    for key, column in numbers.items():
        chosen = counts if column.rows is None else counts[column.rows]
        times, values = (steps if column.rows is None else steps[column.rows])[chosen], column.values[chosen]
        if not (np.diff(times) > 0).all():
            order = np.argsort(times, kind="stable")
            times, values = times[order], values[order]
            is_last = np.append(np.diff(times) > 0, True)
            ends = np.flatnonzero(is_last) + 1
            starts = np.append(0, ends[:-1])
            values = np.add.reduceat(values, starts) / (ends - starts) if averaged else values[is_last]
            times = times[is_last]
        if len(times):
            columns[key] = Numbers(None if len(times) == len(distinct) else np.searchsorted(distinct, times), values)
    return StepMetrics(distinct, columns)

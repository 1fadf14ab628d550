"""Rows of metrics as columns: rows with the same keys form a table, and are converted to numbers by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from gradscope.outside.numerals import number_from
from gradscope.rollouts.readers.parsing.cells import LARGEST_STEP, is_number, logged_number, whole_number
from gradscope.rollouts.step_metrics import Counts, Floats, Numbers

Column = Numbers | Sequence[Any]
"""The cells of rows, or those of them that are numbers."""

_UNNAMED = ("data", "metrics")  # objects whose own keys are metrics, as verl's logger writes them
_MOST_NUMBERS = 4  # in a row of a long table: its value, step, epoch and time; more are metrics of their own
_LONG_NAMES = ("metric", "metric_name", "name", "key", "tag", "variable")
NO_STEP, BAD_STEP = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTable:
    """R rows of a piece of a file that have the same keys."""

    at: Counts  # their indices in the piece, ascending, [R]
    columns: Mapping[str, Column]  # key -> cells
    run: str = ""  # their run, where the file names one outside the cells

    def take(self, rows: Counts) -> MetricTable:
        """The rows with these indices."""
        indices = rows.tolist()
        columns = {
            key: cells.take(rows) if isinstance(cells, Numbers) else [cells[index] for index in indices]
            for key, cells in self.columns.items()
        }
        return MetricTable(at=self.at[rows], columns=columns, run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive rows of a file."""

    where: str  # the file, or a part of it
    numbers: Counts  # the line or entry number of each row
    tables: Sequence[MetricTable]  # the rows; one that several runs share is in several tables

    def location(self, row: int) -> str:
        """The ``file:line`` of a row."""
        return f"{self.where}:{self.numbers[row]}"


def as_tables(rows: Sequence[Mapping[str, Any]], runs: Sequence[str] = ()) -> list[MetricTable]:
    """Tables of the rows that share a run and their keys."""
    rows_of: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    alike = list(zip(runs or repeat(""), map(tuple, rows), strict=False))
    if len(set(alike)) == 1:
        rows_of[alike[0]] = list(range(len(rows)))
    else:
        for row, key in enumerate(alike):
            rows_of.setdefault(key, []).append(row)
    return [
        MetricTable(
            at=np.array(indices, dtype=np.int64),
            columns={key: [rows[row][key] for row in indices] for key in keys},
            run=run,
        )
        for (run, keys), indices in rows_of.items()
    ]


def numbers_by_key(columns: Mapping[str, Column], at: Counts, prefix: str = "") -> Iterator[tuple[str, Counts, Floats]]:
    """The numbers in rows, those in an object under its key and theirs; NaN and infinity count, as words too.

    Yields:
        Key, the rows that have a number, as elements of ``at`` [R], and the numbers.
    """
    for key, cells in columns.items():
        objects = [] if isinstance(cells, Numbers) else [(row, cells[row]) for row in _indices_of(cells, dict)]
        for table in as_tables([cell for _, cell in objects]):
            names = at[np.array([row for row, _ in objects])[table.at]]
            yield from numbers_by_key(table.columns, names, prefix if key in _UNNAMED else f"{prefix}{key}/")
        series = _series(cells)
        if len(series.values):
            yield f"{prefix}{key}", at if series.at is None else at[series.at], series.values


def _indices_of(cells: Sequence[Any], *kinds: type) -> list[int]:
    """Indices of the cells of a type; most columns have none."""
    if set(kinds).isdisjoint(map(type, cells)):
        return []
    return [index for index, cell in enumerate(cells) if type(cell) in kinds]


def _series(cells: Column) -> Numbers:
    """The numbers of a column."""
    if isinstance(cells, Numbers):
        return cells
    if {int, float}.issuperset(map(type, cells)):
        try:
            return Numbers(None, np.array(cells, dtype=np.float64))
        except OverflowError:  # an integer beyond all floats
            pass
    numbers = list(map(_number, cells))
    at = [index for index, number in enumerate(numbers) if number is not None]
    return Numbers(np.array(at, dtype=np.int64), np.array([numbers[index] for index in at], dtype=np.float64))


def _number(cell: Any) -> float | None:
    try:
        return number_from(cell) if isinstance(cell, str) else logged_number(cell)
    except ValueError:
        return None


def has_text(columns: Mapping[str, Column], keys: Iterable[str]) -> bool:
    """Whether any of these columns holds texts or lists."""
    chosen = (columns[key] for key in keys if key in columns)
    return any(not isinstance(cells, Numbers) and bool(_indices_of(cells, str, list)) for cells in chosen)


def steps_in(table: MetricTable, keys: Iterable[str]) -> Counts:
    """The step of each row, from the first of these columns that it has; else NO_STEP or BAD_STEP."""
    steps = np.full(len(table.at), NO_STEP)
    for key in keys:
        if key in table.columns:
            steps = np.where(steps == NO_STEP, _steps(table.columns[key], len(steps)), steps)
    return steps


def _steps(cells: Column, size: int) -> Counts:
    if isinstance(cells, Numbers):
        steps = np.full(size, NO_STEP)
        steps[slice(None) if cells.at is None else cells.at] = _from_floats(cells.values)
        return steps
    if {int}.issuperset(map(type, cells)):
        try:
            steps = np.array(cells, dtype=np.int64)
            return np.where((steps < 0) | (steps > LARGEST_STEP), BAD_STEP, steps)
        except OverflowError:
            pass
    if {float}.issuperset(map(type, cells)):
        return _from_floats(np.array(cells))
    return np.array([NO_STEP if cell in (None, "") else _step(cell) for cell in cells], dtype=np.int64)


def _from_floats(values: Floats) -> Counts:
    is_step = (values >= 0) & (values <= LARGEST_STEP) & (values == np.floor(values))
    return np.where(is_step, values, BAD_STEP).astype(np.int64)


def _step(cell: Any) -> int:
    """A step; ms-swift writes ``3/30``."""
    parts = list(map(whole_number, cell.split("/", maxsplit=1) if isinstance(cell, str) else [cell]))
    return BAD_STEP if None in parts or parts[0] is None else parts[0]


def unpivoted(table: MetricTable) -> list[MetricTable]:
    """Rows of a long table, ``step, metric, value``, as tables with a column for the metric; other rows as they are."""
    keys = [key for key in _LONG_NAMES if key in table.columns and not isinstance(table.columns[key], Numbers)]
    if "value" not in table.columns or not keys:
        return [table]
    num_numbers = np.zeros(len(table.at), dtype=np.int64)
    for cells in table.columns.values():
        is_all = isinstance(cells, Numbers) and cells.at is None
        indices = cells.at if isinstance(cells, Numbers) else np.flatnonzero(list(map(is_number, cells)))
        num_numbers[slice(None) if is_all else indices] += 1
    rows: dict[tuple[str, str] | None, list[int]] = {}
    texts = [cells for key in keys if not isinstance(cells := table.columns[key], Numbers)]
    for row, names in enumerate(zip(*texts, strict=True)):
        named = ((key, name) for key, name in zip(keys, names, strict=True) if isinstance(name, str))
        is_long = num_numbers[row] <= _MOST_NUMBERS
        rows.setdefault(next(named, None) if is_long else None, []).append(row)
    return [_renamed(table.take(np.array(indices)), named) for named, indices in rows.items()]


def _renamed(table: MetricTable, named: tuple[str, str] | None) -> MetricTable:
    if named is None:
        return table
    key, name = named
    columns = {other: cells for other, cells in table.columns.items() if other not in (key, "value")}
    return MetricTable(at=table.at, columns={**columns, name: table.columns["value"]}, run=table.run)


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
    return [MetricTable(at=part.at, columns=part.columns, run=run) for run, part in parts]

"""Rows of metrics side by side: rows with the same keys are columns, and their numbers are found column by column."""

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
"""The cells of some rows, or those of them that are numbers."""

_UNNAMED = ("data", "metrics")  # objects whose keys are metrics by themselves, as verl's logger writes them
_MOST_NUMBERS = 4  # of a row of a long table: its value, and step, epoch and time; more are metrics of their own
_LONG_NAMES = ("metric", "metric_name", "name", "key", "tag", "variable")
NO_STEP, BAD_STEP = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTable:
    """Rows of one piece of a file that have the same keys, [R]."""

    at: Counts  # their places in the piece, ascending, [R]
    columns: Mapping[str, Column]  # key -> cells
    run: str = ""  # the run that they are of, where their file names one beside the cells

    def take(self, places: Counts) -> MetricTable:
        """Some of the rows, by their places among these."""
        some = places.tolist()
        columns = {
            key: cells.take(places) if isinstance(cells, Numbers) else [cells[place] for place in some]
            for key, cells in self.columns.items()
        }
        return MetricTable(at=self.at[places], columns=columns, run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of a file, one after the other."""

    where: str  # the file, or a part of it
    numbers: Counts  # the line or the entry of each
    tables: Sequence[MetricTable]  # the rows; one that several runs share is in several tables

    def location(self, place: int) -> str:
        """Where a row stands."""
        return f"{self.where}:{self.numbers[place]}"


def as_tables(rows: Sequence[Mapping[str, Any]], runs: Sequence[str] = ()) -> list[MetricTable]:
    """Rows as tables of those of one run and with the same keys."""
    places: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    alike = list(zip(runs or repeat(""), map(tuple, rows), strict=False))
    if len(set(alike)) == 1:
        places[alike[0]] = list(range(len(rows)))
    else:
        for place, key in enumerate(alike):
            places.setdefault(key, []).append(place)
    return [
        MetricTable(
            at=np.array(some, dtype=np.int64),
            columns={key: [rows[place][key] for place in some] for key in keys},
            run=run,
        )
        for (run, keys), some in places.items()
    ]


def numbers_by_key(columns: Mapping[str, Column], at: Counts, prefix: str = "") -> Iterator[tuple[str, Counts, Floats]]:
    """The numbers of rows, those of an object under its key and theirs; NaN and infinity count, as words too.

    Yields:
        Key, the rows that have a number, by their names ``at`` [R], and the numbers.
    """
    for key, cells in columns.items():
        objects = [] if isinstance(cells, Numbers) else [(place, cells[place]) for place in _places_of(cells, dict)]
        for one in as_tables([cell for _, cell in objects]):
            names = at[np.array([place for place, _ in objects])[one.at]]
            yield from numbers_by_key(one.columns, names, prefix if key in _UNNAMED else f"{prefix}{key}/")
        series = _series(cells)
        if len(series.values):
            yield f"{prefix}{key}", at if series.at is None else at[series.at], series.values


def _places_of(cells: Sequence[Any], *kinds: type) -> list[int]:
    """Where cells of a kind are; most columns have none."""
    if set(kinds).isdisjoint(map(type, cells)):
        return []
    return [place for place, cell in enumerate(cells) if type(cell) in kinds]


def _series(cells: Column) -> Numbers:
    """The numbers of a column."""
    if isinstance(cells, Numbers):
        return cells
    if {int, float}.issuperset(map(type, cells)):
        try:
            return Numbers(None, np.array(cells, dtype=np.float64))
        except OverflowError:  # a whole number beyond all floats
            pass
    found = list(map(_number, cells))
    at = [place for place, number in enumerate(found) if number is not None]
    return Numbers(np.array(at, dtype=np.int64), np.array([found[place] for place in at], dtype=np.float64))


def _number(cell: Any) -> float | None:
    try:
        return number_from(cell) if isinstance(cell, str) else logged_number(cell)
    except ValueError:
        return None


def has_text(columns: Mapping[str, Column], keys: Iterable[str]) -> bool:
    """Whether any of some columns holds texts or lists."""
    found = (columns[key] for key in keys if key in columns)
    return any(not isinstance(cells, Numbers) and bool(_places_of(cells, str, list)) for cells in found)


def steps_in(table: MetricTable, keys: Iterable[str]) -> Counts:
    """The step of each row, in the first of some columns that it has; NO_STEP and BAD_STEP where there is none."""
    found = np.full(len(table.at), NO_STEP)
    for key in keys:
        if key in table.columns:
            found = np.where(found == NO_STEP, _steps(table.columns[key], len(found)), found)
    return found


def _steps(cells: Column, size: int) -> Counts:
    if isinstance(cells, Numbers):
        found = np.full(size, NO_STEP)
        found[slice(None) if cells.at is None else cells.at] = _whole(cells.values)
        return found
    if {int}.issuperset(map(type, cells)):
        try:
            whole = np.array(cells, dtype=np.int64)
            return np.where((whole < 0) | (whole > LARGEST_STEP), BAD_STEP, whole)
        except OverflowError:
            pass
    if {float}.issuperset(map(type, cells)):
        return _whole(np.array(cells))
    return np.array([NO_STEP if cell in (None, "") else _step(cell) for cell in cells], dtype=np.int64)


def _whole(values: Floats) -> Counts:
    is_step = (values >= 0) & (values <= LARGEST_STEP) & (values == np.floor(values))
    return np.where(is_step, values, BAD_STEP).astype(np.int64)


def _step(cell: Any) -> int:
    """A step; ms-swift's is ``3/30``."""
    parts = list(map(whole_number, cell.split("/", maxsplit=1) if isinstance(cell, str) else [cell]))
    return BAD_STEP if None in parts or parts[0] is None else parts[0]


def unpivoted(table: MetricTable) -> list[MetricTable]:
    """Rows of a long table, ``step, metric, value``, as rows of these metrics; other rows as they are."""
    keys = [key for key in _LONG_NAMES if key in table.columns and not isinstance(table.columns[key], Numbers)]
    if "value" not in table.columns or not keys:
        return [table]
    num_numbers = np.zeros(len(table.at), dtype=np.int64)
    for cells in table.columns.values():
        is_all = isinstance(cells, Numbers) and cells.at is None
        places = cells.at if isinstance(cells, Numbers) else np.flatnonzero(list(map(is_number, cells)))
        num_numbers[slice(None) if is_all else places] += 1
    rows: dict[tuple[str, str] | None, list[int]] = {}
    texts = [cells for key in keys if not isinstance(cells := table.columns[key], Numbers)]
    for place, names in enumerate(zip(*texts, strict=True)):
        named = ((key, name) for key, name in zip(keys, names, strict=True) if isinstance(name, str))
        is_long = num_numbers[place] <= _MOST_NUMBERS
        rows.setdefault(next(named, None) if is_long else None, []).append(place)
    return [_renamed(table.take(np.array(places)), named) for named, places in rows.items()]


def _renamed(table: MetricTable, named: tuple[str, str] | None) -> MetricTable:
    if named is None:
        return table
    key, name = named
    others = {other: cells for other, cells in table.columns.items() if other not in (key, "value")}
    return MetricTable(at=table.at, columns={**others, name: table.columns["value"]}, run=table.run)


def by_run(table: MetricTable, keys: Iterable[str]) -> list[MetricTable]:
    """The rows of each run, by the first of some columns that has a text in a row, where the table has no run."""
    columns = (table.columns[key] for key in keys if key in table.columns)
    texts = [cells for cells in columns if not isinstance(cells, Numbers)]
    if table.run or not texts:
        return [table]
    rows: dict[str, list[int]] = {}
    for place, names in enumerate(zip(*texts, strict=True)):
        rows.setdefault(next((name for name in names if isinstance(name, str)), ""), []).append(place)
    parts = [(run, table if len(rows) == 1 else table.take(np.array(places))) for run, places in rows.items()]
    return [MetricTable(at=part.at, columns=part.columns, run=run) for run, part in parts]

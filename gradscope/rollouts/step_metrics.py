"""Metrics by step as columns, so that millions of steps are a few arrays and still a mapping of steps."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_AT_ONCE = 1 << 12  # steps that are made into dictionaries at once


@dataclass(frozen=True, slots=True)
class Numbers:
    """A metric that N of R rows have."""

    at: Counts | None  # their indices, ascending, [N]; None: all rows
    values: Floats  # [N]

    def take(self, rows: Counts) -> Numbers:
        """The same metric of the rows with these ascending indices."""
        if self.at is None:
            return Numbers(None, self.values[rows])
        where = np.searchsorted(self.at, rows)
        has = np.append(self.at, -1)[where] == rows
        return Numbers(np.flatnonzero(has), self.values[where[has]])


class StepMetrics(Mapping[int, Mapping[str, float]]):
    """Step -> name -> number, ascending by step."""

    def __init__(self, steps: Counts, columns: Mapping[str, Numbers]) -> None:
        """Takes the steps, ascending, [S], and the metric of each name over them."""
        self.steps = steps
        self.columns = columns

    @classmethod
    def of(cls, metrics: Mapping[int, Mapping[str, float]]) -> StepMetrics:
        """Columns of a mapping from steps to metrics."""
        if isinstance(metrics, cls):
            return metrics
        collected: dict[str, tuple[list[int], list[float]]] = {}  # name -> rows, values
        steps = sorted(metrics)
        for row, step in enumerate(steps):
            for name, value in metrics[step].items():
                at, values = collected.setdefault(name, ([], []))
                at.append(row)
                values.append(value)
        series = {
            name: Numbers(np.array(at, dtype=np.int64), np.array(values, dtype=np.float64))
            for name, (at, values) in collected.items()
        }
        return cls(np.array(steps, dtype=np.int64), series)

    def course(self, name: str) -> tuple[Counts, Floats]:
        """The steps that have a number, ascending, [N], and the numbers, [N]."""
        column = self.columns.get(name)
        if column is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return (self.steps if column.at is None else self.steps[column.at]), column.values

    def by_step(self, name: str) -> dict[int, float]:
        """Step -> the number, of the steps that have it."""
        steps, values = self.course(name)
        return dict(zip(steps.tolist(), values.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __getitem__(self, step: int) -> dict[str, float]:
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            raise KeyError(step)
        return self._rows(row, row + 1)[0]

    def items(self) -> ItemsView[int, Mapping[str, float]]:
        """Steps with their numbers."""
        return _Items(self)

    def values(self) -> ValuesView[Mapping[str, float]]:
        """The numbers of each step."""
        return _Values(self)

    def rows(self) -> Iterator[dict[str, float]]:
        """The numbers of each step, made in blocks of thousands."""
        for start in range(0, len(self), _AT_ONCE):
            yield from self._rows(start, min(start + _AT_ONCE, len(self)))

    def _rows(self, start: int, stop: int) -> list[dict[str, float]]:
        rows: list[dict[str, float]] = [{} for _ in range(stop - start)]
        for name, column in self.columns.items():
            low, high = (start, stop) if column.at is None else np.searchsorted(column.at, (start, stop)).tolist()
            offsets = range(stop - start) if column.at is None else (column.at[low:high] - start).tolist()
            for offset, value in zip(offsets, column.values[low:high].tolist(), strict=True):
                rows[offset][name] = value
        return rows


class _Items(ItemsView[int, Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        return zip(self._mapping, self._mapping.rows(), strict=True)


class _Values(ValuesView[Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[Mapping[str, float]]:
        return self._mapping.rows()

"""What was logged by step as columns, so that millions of steps are a few arrays and still a mapping of steps."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_AT_ONCE = 1 << 12  # steps that are dictionaries at once


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number that some of R rows have, N of them."""

    at: Counts | None  # which rows, ascending, [N]; None: all of them
    values: Floats  # [N]

    def take(self, places: Counts) -> Numbers:
        """The same of some rows, which are ascending, by their places among these."""
        if self.at is None:
            return Numbers(None, self.values[places])
        where = np.searchsorted(self.at, places)
        has = np.append(self.at, -1)[where] == places
        return Numbers(np.flatnonzero(has), self.values[where[has]])


class StepMetrics(Mapping[int, Mapping[str, float]]):
    """Step -> name -> number, ascending by step."""

    def __init__(self, steps: Counts, columns: Mapping[str, Numbers]) -> None:
        """Takes the steps, ascending, [S], and a series over them for each name."""
        self.steps = steps
        self.columns = columns

    @classmethod
    def of(cls, metrics: Mapping[int, Mapping[str, float]]) -> StepMetrics:
        """The same of any mapping of that kind."""
        if isinstance(metrics, cls):
            return metrics
        found: dict[str, tuple[list[int], list[float]]] = {}
        steps = sorted(metrics)
        for place, step in enumerate(steps):
            for name, value in metrics[step].items():
                at, values = found.setdefault(name, ([], []))
                at.append(place)
                values.append(value)
        series = {
            name: Numbers(np.array(at, dtype=np.int64), np.array(values, dtype=np.float64))
            for name, (at, values) in found.items()
        }
        return cls(np.array(steps, dtype=np.int64), series)

    def course(self, name: str) -> tuple[Counts, Floats]:
        """The steps that have a number, ascending, [N], and the numbers, [N]."""
        one = self.columns.get(name)
        if one is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return (self.steps if one.at is None else self.steps[one.at]), one.values

    def by_step(self, name: str) -> dict[int, float]:
        """Step -> the number, of the steps that have it."""
        steps, values = self.course(name)
        return dict(zip(steps.tolist(), values.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __getitem__(self, step: int) -> dict[str, float]:
        place = int(np.searchsorted(self.steps, step))
        if place == len(self.steps) or self.steps[place] != step:
            raise KeyError(step)
        return self._rows(place, place + 1)[0]

    def items(self) -> ItemsView[int, Mapping[str, float]]:
        """Steps with their numbers."""
        return _Items(self)

    def values(self) -> ValuesView[Mapping[str, float]]:
        """The numbers of each step."""
        return _Values(self)

    def rows(self) -> Iterator[dict[str, float]]:
        """The numbers of each step, of some thousands at once."""
        for start in range(0, len(self), _AT_ONCE):
            yield from self._rows(start, min(start + _AT_ONCE, len(self)))

    def _rows(self, start: int, stop: int) -> list[dict[str, float]]:
        rows: list[dict[str, float]] = [{} for _ in range(stop - start)]
        for name, one in self.columns.items():
            low, high = (start, stop) if one.at is None else np.searchsorted(one.at, (start, stop)).tolist()
            places = range(stop - start) if one.at is None else (one.at[low:high] - start).tolist()
            for place, value in zip(places, one.values[low:high].tolist(), strict=True):
                rows[place][name] = value
        return rows


class _Items(ItemsView[int, Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        return zip(self._mapping, self._mapping.rows(), strict=True)


class _Values(ValuesView[Mapping[str, float]]):
    _mapping: StepMetrics

    def __iter__(self) -> Iterator[Mapping[str, float]]:
        return self._mapping.rows()

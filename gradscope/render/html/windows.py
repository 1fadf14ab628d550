"""Long courses in windows: a page shows at most so many places, each the mean of neighboring steps with its extremes.

A drawing of a thousand steps on eight hundred pixels has more points than can be seen, and a table of as many rows is
not read. A spike is not lost: what a window holds is drawn as a band from its least to its greatest value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.estimate import Estimate
from gradscope.results.report import Cell, Chart, ReportTable

MOST_PLACES = 160
"""Points of a line: five pixels each on a page of full width."""
MOST_ROWS = 100
"""Rows of a table over steps; the JSON document has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Neighboring places of a chart, one or more."""

    low: float
    """The first place."""
    high: float
    """The last."""
    start: int
    """Where it begins among all places."""
    end: int
    """Where the next one begins."""

    @property
    def middle(self) -> float:
        """Where it is drawn."""
        return (self.low + self.high) / 2

    @property
    def name(self) -> str:
        """Its place, or its first and last."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a window holds of one line."""

    value: float
    """The mean of its finite values."""
    low: float
    """The least of them."""
    high: float
    """The greatest."""


def windows_of(chart: Chart) -> tuple[Window, ...]:
    """The places of a chart over numbers, put together where there are more than can be told apart.

    Returns:
        At most :data:`MOST_PLACES` windows of as many places each, but for the last.
    """
    places = [float(place) for place in chart.places]
    width = math.ceil(len(places) / MOST_PLACES)
    starts = range(0, len(places), width or 1)
    ends = [min(start + width, len(places)) for start in starts]
    return tuple(
        Window(low=places[start], high=places[end - 1], start=start, end=end)
        for start, end in zip(starts, ends, strict=True)
    )


def points_of(values: Sequence[float | None], windows: Sequence[Window]) -> list[Point | None]:
    """One line in windows.

    Returns:
        A point a window; None where it holds no finite value.
    """
    return [_point(values[window.start : window.end]) for window in windows]


def _point(values: Sequence[float | None]) -> Point | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return Point(value=math.fsum(known) / len(known), low=min(known), high=max(known)) if known else None


def windowed_table(table: ReportTable) -> ReportTable:
    """A table over steps with few enough rows to be read.

    Returns:
        The table itself, or one whose rows are windows of as many steps each: the first column names them, numbers are
        means (of estimates, of their values), and words are told with how often they stand there.
    """
    width = math.ceil(len(table.rows) / MOST_ROWS)
    if not table.by_step or width < 2:
        return table
    parts = [table.rows[start : start + width] for start in range(0, len(table.rows), width)]
    first, *others = table.columns
    return replace(
        table,
        caption=f"{table.caption}. Each row is {width} steps: means of numbers, counts of words; --json has every step",
        columns=(replace(first, style="text"), *others),
        rows=tuple((f"{part[0][0]}-{part[-1][0]}", *_together(part)) for part in parts),
    )


def _together(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Cell]:
    for cells in list(zip(*rows, strict=True))[1:]:
        there = [cell for cell in cells if cell is not None]
        words = [cell for cell in there if isinstance(cell, str)]
        if words:
            counted = Counter(words).most_common()
            yield words[0] if len(counted) == 1 else ", ".join(f"{word} {number}" for word, number in counted)
            continue
        numbers = [cell.value if isinstance(cell, Estimate) else cell for cell in there]
        point = _point([number for number in numbers if isinstance(number, float | int)])
        yield None if point is None else point.value

"""Long courses put together: few points, nothing lost, and short courses as they are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.estimate import Estimate
from gradscope.render.html.windows import MOST_PLACES, MOST_ROWS, points_of, windowed_table, windows_of
from gradscope.results.report import Chart, Column, ReportTable, Series


def chart(values: list[float | None]) -> Chart:
    places = tuple(range(1, len(values) + 1))
    return Chart(title="t", kind="lines", places=places, series=(Series(name="s", values=tuple(values)),))


@pytest.mark.parametrize("length", [1, 2, 159, 160, 161, 320, 321, 600, 1000, 4801])
def test_every_place_is_in_one_window_and_there_are_few(length: int) -> None:
    windows = windows_of(chart([0.0] * length))
    assert len(windows) <= MOST_PLACES
    assert [window.start for window in windows[1:]] == [window.end for window in windows[:-1]]
    assert (windows[0].start, windows[-1].end) == (0, length)
    assert (windows[0].low, windows[-1].high) == (1, length)
    assert len(windows) == length or length > MOST_PLACES


def test_a_spike_is_in_the_band_and_means_are_those_of_the_steps() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    values[618] = 50.0
    windows = windows_of(chart(values.tolist()))
    points = [point for point in points_of(values.tolist(), windows) if point is not None]
    assert max(point.high for point in points) == 50.0
    for window, point in zip(windows, points, strict=True):
        assert point.value == pytest.approx(values[window.start : window.end].mean())


def test_what_is_missing_or_not_finite_is_no_part_of_a_mean() -> None:
    values: list[float | None] = [1.0, None, math.nan, 3.0, None, None]
    windows = windows_of(chart(values * 160))
    (first, *_, last) = points_of(values * 160, windows)
    assert (first.value, first.low, first.high) == (2.0, 1.0, 3.0)  # type: ignore[union-attr]
    assert last == first
    assert points_of([None, math.inf], windows_of(chart([None, math.inf]))) == [None, None]


def test_windows_are_named_by_their_ends() -> None:
    names = [window.name for window in windows_of(chart([0.0] * 321))]
    assert (names[0], names[-1]) == ("1-3", "319-321")
    assert [window.name for window in windows_of(chart([0.0] * 2))] == ["1", "2"]


def table(length: int) -> ReportTable:
    rows = tuple(
        (step, Estimate.exact(step), None if step % 2 else 0.5, "dead" if step % 4 == 0 else "live", None)
        for step in range(1, length + 1)
    )
    columns = (Column(title="step", style="count"), *(Column(title=name, style="norm") for name in "abcd"))
    return ReportTable(caption="Each step", columns=columns, rows=rows, by_step=True)


def test_a_long_table_has_a_row_a_window() -> None:
    long = windowed_table(table(1000))
    assert len(long.rows) == MOST_ROWS
    assert long.rows[0] == ("1-10", 5.5, 0.5, "live 8, dead 2", None)
    assert long.rows[-1][0] == "991-1000"
    assert "Each row is 10 steps" in long.caption


def test_short_tables_and_those_of_other_things_are_left_alone() -> None:
    short = table(MOST_ROWS)
    assert windowed_table(short) is short
    other = ReportTable(caption="", columns=short.columns, rows=table(1000).rows)
    assert windowed_table(other) is other


def test_words_that_are_alike_are_said_once() -> None:
    alike = ReportTable(caption="", columns=table(1).columns[:2], rows=((1, "match"),) * 300, by_step=True)
    assert windowed_table(alike).rows[0] == ("1-1", "match")

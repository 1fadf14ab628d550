"""Courses as lines of bars."""

from __future__ import annotations

from gradscope.render.terminal.layout import sparkline


def test_a_sparkline_shows_the_scale_that_it_was_given() -> None:
    assert sparkline([0.0, 0.49, 1.0, 2.0, -1.0], low=0.0, high=1.0) == "▁▄██▁"


def test_a_long_series_is_averaged_and_a_gap_stays_a_gap() -> None:
    values = [0.0] * 50 + [None] * 50 + [1.0] * 100
    assert sparkline(values, low=0.0, high=1.0, width=4) == "▁·██"


def test_a_scale_without_length_draws_the_lowest_bar() -> None:
    assert sparkline([1.0, 5.0], low=1.0, high=1.0) == "▁▁"


def test_what_is_not_finite_is_marked_even_among_many() -> None:
    values = [1.0] * 9 + [float("nan")] + [1.0] * 10 + [float("inf"), None]
    assert sparkline(values, low=0.0, high=1.0, width=2) == "!!"
    assert sparkline(values[-3:], low=0.0, high=1.0) == "█!·"

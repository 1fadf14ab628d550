from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.render.html.scale import Scale, place, ticks, widened


def test_a_scale_is_a_line() -> None:
    scale = Scale(low=-1.0, high=3.0, start=10.0, end=50.0)
    assert (scale(-1.0), scale(3.0), scale(0.0)) == (10.0, 50.0, 20.0)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1.0, 4.0], (0.0, 4.0)),
        ([3.0, 4.0], (3.0, 4.0)),
        ([-4.0, -1.0], (-4.0, 0.0)),
        ([2.0, 2.0], (0.0, 2.0)),
        ([-2.0], (-2.0, 0.0)),
        ([0.0, 0.0], (-0.5, 0.5)),
    ],
)
def test_zero_is_on_the_scale_where_it_is_near(values: list[float], ends: tuple[float, float]) -> None:
    assert widened(values) == ends


@pytest.mark.parametrize(
    ("low", "high", "most", "marks"),
    [
        (-1.0, 3.0, 5, [-1.0, 0.0, 1.0, 2.0, 3.0]),
        (0.0, 1.0, 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.0, 0.3, 5, [0.0, 0.1, 0.2, 0.3]),
        (1.0, 60.0, 8, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        (0.0, 4e-14, 5, [0.0, 1e-14, 2e-14, 3e-14, 4e-14]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, marks: list[float]) -> None:
    assert ticks(low, high, most=most) == marks


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_inside_and_no_more_than_fit(low: float, length: float, most: int) -> None:
    marks = ticks(low, low + length, most=most)
    assert len(marks) <= most
    assert all(low - 1e-6 * length <= mark <= low + length * (1 + 1e-6) for mark in marks)


def test_coordinates_have_one_decimal_at_most() -> None:
    assert [place(value) for value in (12.0, 1 / 3, 0.1, 100.0)] == ["12", "0.3", "0.1", "100"]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3), st.integers(2, 12))
def test_every_number_that_is_finite_has_a_place(values: list[float], most: int) -> None:
    low, high = widened(values)
    scale = Scale(low=low, high=high, start=50.0, end=10.0)
    assert all(10.0 - 1e-6 <= scale(value) <= 50.0 + 1e-6 for value in values)
    assert len(ticks(low, high, most=most)) <= most


@pytest.mark.parametrize(
    ("ends", "marks"), [((-1.7e308, 1.7e308), [0.0]), ((1e300, 1.7e308), []), ((-5e307, 5e307), [0.0])]
)
def test_a_scale_of_the_largest_floats_has_zero_alone(ends: tuple[float, float], marks: list[float]) -> None:
    assert ticks(*ends) == marks

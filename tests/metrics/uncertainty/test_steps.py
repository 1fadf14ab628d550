from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.uncertainty.steps import FEWEST_STEPS, independent_steps, mean_of_steps


def persistent(rng: np.random.Generator, num_steps: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=num_steps + 200)
    for at in range(1, len(values)):
        values[at] += correlation * values[at - 1]
    return values[200:]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_two_stretches_of_one_process_seldom_differ_beyond_their_intervals(correlation: float) -> None:
    rng = np.random.default_rng(1)
    apart = 0
    for _ in range(300):
        one, two = (mean_of_steps(course[-20:], course) for course in persistent(rng, 200, correlation).reshape(2, 100))
        reach = np.hypot(one.ends[1] - (one.value or 0.0), two.ends[1] - (two.value or 0.0))
        apart += abs((one.value or 0.0) - (two.value or 0.0)) > reach
    assert apart <= 0.05 * 300


def test_of_uncorrelated_steps_the_interval_is_not_far_from_students() -> None:
    rng = np.random.default_rng(2)
    halves = [(e := mean_of_steps(values, values)).ends[1] - (e.value or 0.0) for values in rng.normal(size=(200, 100))]
    assert 0.19 < float(np.mean(halves)) < 0.3  # Student's: 0.198


def test_a_drift_that_is_slow_beside_the_stretch_widens_its_interval() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=200)
    wandering = noise + 3 * np.repeat(rng.normal(size=10), 20)
    still, moved = (mean_of_steps(course[-20:], course) for course in (noise, wandering))
    assert moved.ends[1] - moved.ends[0] > 2 * (still.ends[1] - still.ends[0])


def test_few_steps_have_no_interval_and_equal_ones_an_empty_one() -> None:
    few = mean_of_steps(range(FEWEST_STEPS - 1), range(100))
    assert (few.value, few.interval) == (4.0, None)
    assert mean_of_steps([0.5] * 12, [0.5] * 40).interval == (0.5, 0.5)


@pytest.mark.parametrize(("correlation", "worth"), [(0.0, 1.0), (0.5, 1 / 3), (0.8, 1 / 9)])
def test_correlated_steps_are_worth_fewer(correlation: float, worth: float) -> None:
    course = persistent(np.random.default_rng(4), 4000, correlation)
    assert independent_steps(course) / 4000 == pytest.approx(worth, rel=0.2)


def test_deviations_from_a_line_are_more_correlated_than_they_look() -> None:
    course = persistent(np.random.default_rng(5), 40, 0.4)
    assert independent_steps(course, num_fitted=2) < independent_steps(course)


def test_what_alternates_is_worth_no_more_than_it_is() -> None:
    assert independent_steps([1.0, -1.0] * 20) == 40
    assert independent_steps([0.0] * 12) == pytest.approx(12 * (11 / 13))

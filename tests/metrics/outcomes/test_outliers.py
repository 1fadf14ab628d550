from __future__ import annotations

import math

import numpy as np
import pytest

from gradscope.metrics.outcomes.outliers import FEWEST_NEIGHBORS, NUM_NEIGHBORS, Deviation, deviation_of


def found(values: dict[int, float], step: int, chosen_from: int = 1) -> Deviation:
    deviation = deviation_of(values, step, num_chosen_from=chosen_from)
    assert isinstance(deviation, Deviation)
    return deviation


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_median_absolute_deviation_of_logarithms(seed: int) -> None:
    values = np.exp(np.random.default_rng(seed).normal(size=31))
    logs = np.log(values)
    others = logs[:-1]
    spread = 1.4826 * np.median(np.abs(others - np.median(others)))
    deviation = found(dict(enumerate(values.tolist())), 30)
    assert deviation.deviation == pytest.approx((logs[-1] - np.median(others)) / spread)
    assert deviation.times == pytest.approx(values[-1] / np.median(values[:-1]))
    assert deviation.num_neighbors == 30


def test_numbers_of_either_sign_are_taken_as_they_are() -> None:
    deviation = found({step: float((-1) ** step * (step % 3)) for step in range(20)} | {20: 9.0}, 20)
    assert deviation.times is None
    assert deviation.deviation > 4


def test_only_the_nearest_steps_count() -> None:
    values = {step: 100.0 + step % 3 for step in range(200)} | {step: 1.0 + step % 3 for step in range(200, 300)}
    deviation = found(values, 299)
    assert deviation.num_neighbors == NUM_NEIGHBORS
    assert deviation.typical < 4


def test_what_is_not_finite_is_no_neighbor() -> None:
    values = {step: 1.0 + step % 4 for step in range(12)} | {3: math.nan, 4: math.inf}
    assert found(values, 11).num_neighbors == 9


def test_a_step_without_a_gradient_changes_nothing() -> None:
    values = {step: 1.0 + step % 4 for step in range(12)}
    assert found(values | {12: 0.0}, 11) == found(values, 11)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({step: float(step != 1) for step in range(20)}, "it is zero"),
        (dict.fromkeys(range(20), 1.0), "half of the other steps have the same number"),
        (
            {step: 1.0 + step for step in range(FEWEST_NEIGHBORS)},
            "7 other steps have the number, and a spread needs 8",
        ),
    ],
)
def test_why_it_cannot_be_told(values: dict[int, float], reason: str) -> None:
    assert deviation_of(values, 1, num_chosen_from=1) == reason


@pytest.mark.parametrize("num_steps", [10, 60])
def test_one_run_in_twenty_has_a_step_that_stands_out_by_chance(num_steps: int) -> None:
    """At most 9 % of 200 runs of log-normal steps: 5 % and two standard errors."""
    chance, alarms = np.random.default_rng(num_steps), 0
    for _ in range(200):
        values = dict(enumerate(np.exp(0.3 * chance.normal(size=num_steps)).tolist()))
        alarms += any(found(values, step, num_steps).is_unusual for step in values)
    assert alarms <= 18


def test_a_bound_for_a_step_that_was_named_is_lower_than_for_the_furthest_of_many() -> None:
    values = {step: 1.0 + step % 4 for step in range(40)}
    assert found(values, 3).by_chance < found(values, 3, 40).by_chance

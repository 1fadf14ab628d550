from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from gradscope.metrics.uncertainty.trend import trend, trend_within


def test_trend_is_the_regression_line_from_end_to_end() -> None:
    steps = np.array([1, 2, 5, 9, 12])
    values = np.array([0.3, 0.5, 0.4, 0.8, 0.7])
    line = linregress(steps, values)
    half = student.ppf(0.975, 1) * line.stderr * 11 * 5**0.5  # worth three: one degree of freedom, s^2 as large times 5
    change = trend(steps, values)
    assert change.value == pytest.approx(line.slope * 11)
    assert change.low == pytest.approx(line.slope * 11 - half)
    assert change.high == pytest.approx(line.slope * 11 + half)


def test_large_steps_cost_no_digits() -> None:
    far = trend(np.arange(10) + 1_000_000_000, np.arange(10) / 9)
    assert far.value == pytest.approx(1.0)


def test_a_trend_of_noise_holds_zero_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    ends = [trend(np.arange(30), rng.normal(size=30)).ends for _ in range(1000)]
    assert 0.93 < np.mean([low <= 0 <= high for low, high in ends]) <= 0.999


@pytest.mark.parametrize("length", [3, 5, 10, 12, 40])
@pytest.mark.parametrize("correlation", [0.5, 0.8, 0.9])
def test_a_trend_of_noise_that_persists_is_seldom_taken_for_one(correlation: float, length: int) -> None:
    """Student's interval takes a fifth to a half of such courses for a trend; at most 5 % are here."""
    rng = np.random.default_rng(length)
    noise = rng.normal(size=(400, 40 + length))
    for at in range(1, noise.shape[1]):
        noise[:, at] += correlation * noise[:, at - 1]
    ends = [trend(np.arange(length), course[40:]).ends for course in noise]
    assert np.mean([not low <= 0 <= high for low, high in ends]) < 0.075


def test_a_trend_that_is_there_is_seen() -> None:
    rng = np.random.default_rng(0)
    found = [trend(np.arange(30), np.linspace(0, 3, 30) + rng.normal(size=30)).side_of_zero for _ in range(100)]
    assert found.count(1) > 75


def test_within_units_that_are_all_there_it_is_the_trend_of_the_means() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 4)) + np.arange(4)
    found = trend_within(np.repeat(np.arange(12), 4), np.tile(np.arange(4), 12), values.ravel())
    assert found.value == pytest.approx(trend(np.arange(12), values.mean(axis=1)).value)


def test_within_units_a_change_of_units_is_no_change() -> None:
    steps = [1, 2, 3, 4, 5, 6]
    assert trend_within(steps, list("aabbcc"), [0.0, 0.0, 5.0, 5.0, 9.0, 9.0]).value == pytest.approx(0.0)
    assert trend_within(steps, list("aabbcd"), [0.0, 1.0, 5.0, 6.0, 9.0, 3.0]).value == pytest.approx(3.0)


@pytest.mark.parametrize(("num_epochs", "correlation"), [(2, 0.0), (3, 0.9), (6, 0.9)])
def test_within_prompts_that_return_luck_that_persists_is_no_trend(num_epochs: int, correlation: float) -> None:
    rng, claimed = np.random.default_rng(num_epochs), 0
    for _ in range(200):
        shock = rng.normal(size=num_epochs * 8 + 40)
        for at in range(1, len(shock)):
            shock[at] += correlation * shock[at - 1]
        level, steps = rng.normal(size=32), np.repeat(np.arange(num_epochs * 8), 4)
        prompts = np.tile(np.arange(32), num_epochs)
        values = level[prompts] + shock[40:][steps] + 0.3 * rng.normal(size=len(steps))
        claimed += trend_within(steps, prompts, values).side_of_zero != 0
    assert claimed <= 15


def test_one_value_a_step_is_needed() -> None:
    with pytest.raises(ValueError, match="one value a step is needed"):
        trend([1, 2, 3], [1.0, 2.0])


def test_repeated_steps_are_no_further_steps() -> None:
    assert "there are 2" in str(trend([1, 1, 2, 2], [0.0, 1.0, 0.0, 1.0]).undefined)

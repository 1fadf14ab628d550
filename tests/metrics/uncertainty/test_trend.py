from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from gradscope.metrics.uncertainty.trend import trend


def test_trend_is_the_regression_line_from_end_to_end() -> None:
    steps = np.array([1, 2, 5, 9, 12])
    values = np.array([0.3, 0.5, 0.4, 0.8, 0.7])
    line = linregress(steps, values)
    half = student.ppf(0.975, 3) * line.stderr * 11
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
    assert 0.93 < np.mean([low <= 0 <= high for low, high in ends]) < 0.985


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_a_trend_of_noise_that_persists_is_seldom_taken_for_one(correlation: float) -> None:
    """Student's interval takes a fifth to a half of such courses for a trend."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, 80))
    for at in range(1, noise.shape[1]):
        noise[:, at] += correlation * noise[:, at - 1]
    ends = [trend(np.arange(40), course[40:]).ends for course in noise]
    assert np.mean([not low <= 0 <= high for low, high in ends]) < 0.1


def test_one_value_a_step_is_needed() -> None:
    with pytest.raises(ValueError, match="one value a step is needed"):
        trend([1, 2, 3], [1.0, 2.0])


def test_repeated_steps_are_no_further_steps() -> None:
    assert "there are 2" in str(trend([1, 1, 2, 2], [0.0, 1.0, 0.0, 1.0]).undefined)

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_mean,
    bootstrap_statistics,
)
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.metrics.uncertainty.studentized import influence_values

Array = NDArray[np.float64]


def draws(seed: int, size: int) -> Array:
    return np.random.default_rng(seed).beta(0.4, 0.8, size)


def test_skewed_pass_rates_are_covered() -> None:
    # Most prompts are nearly hopeless: the percentile and BCa intervals cover 90 to 92 % of the time here.
    rng, hits, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        mean = bootstrap_mean(rng.binomial(8, rng.beta(0.1, 0.9, 30)) / 8, resampling=Resampling(num_resamples=500))
        hits += mean.low <= 0.1 <= mean.high
    assert 0.93 <= hits / trials <= 0.995


def test_intervals_stay_within_the_range_of_each_statistic() -> None:
    units = np.column_stack([draws(0, 12), np.ones(12)])
    free = bootstrap_statistics(lambda sums: sums / 12, units)[0]
    assert free.low < 0.3 < 0.4 < free.high
    cut, constant = bootstrap_statistics(lambda sums: sums / 12, units, within=([0.3, -1.0], 0.4))
    assert (cut.low, cut.value, cut.high) == (min(0.3, free.value), free.value, max(0.4, free.value))
    assert constant.low is None


def test_many_units_are_merged() -> None:
    values = draws(0, 30_000)
    mean = bootstrap_mean(values)
    assert mean.num_units == 30_000
    assert mean.value == pytest.approx(values.mean())
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * values.std() / 30_000**0.5, rel=0.1)


def test_resampling_bias_is_taken_out() -> None:
    # The variance of 8 means of equal truth: resampling adds noise to each, so nearly all resamples are too large.
    table = np.zeros((64, 16))
    table[np.arange(64), np.arange(64) // 8] = np.random.default_rng(1).integers(0, 2, 64)
    table[np.arange(64), 8 + np.arange(64) // 8] = 1.0

    def between(sums: Array) -> Array:
        return np.var(sums[..., :8] / np.maximum(sums[..., 8:], 1), axis=-1)[..., None]

    (variance,) = bootstrap_statistics(between, table)
    assert variance.low <= 0.0 < variance.value


def test_influence_of_a_mean_is_the_deviation_from_it() -> None:
    values = draws(0, 12)
    units = np.column_stack([values, np.ones(12)])
    influence = influence_values(lambda sums: sums[..., :1] / sums[..., 1:], units)
    assert influence[:, 0] == pytest.approx(values - values.mean())

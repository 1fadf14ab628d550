from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.outcomes.dispersion import (
    DEALT,
    NORMAL,
    dispersion_test,
    estimate_rate_variance,
)
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.uncertainty.resampling import Resampling


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from([2, 3]))
def test_gap_of_a_population_is_a_multiple_of_its_variance(rates: list[float], size: int) -> None:
    p = np.array(rates)
    gap = iid_prediction(p, size).mean() - iid_prediction(p.mean(), size)
    assert gap == pytest.approx(size * p.var(), abs=1e-12)


def test_moments_agree_with_deals() -> None:
    # z is exact: over many logs made under the hypothesis it has mean 0 and variance 1.
    rng = np.random.default_rng(0)
    scores = []
    for seed in range(300):
        n = rng.integers(2, 7, 1001)
        test = dispersion_test(n, rng.binomial(n, 0.3), np.repeat(np.arange(7), 143), seed=seed)
        scores.append(test.z.value)
    assert test.test == NORMAL
    assert np.mean(scores) == pytest.approx(0.0, abs=0.2)
    assert np.std(scores) == pytest.approx(1.0, abs=0.15)


def test_p_value_is_uniform_under_the_hypothesis_and_a_drifting_rate_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    stratum, rate = np.repeat([1, 2], 20), np.repeat([0.1, 0.9], 20)
    tests = [dispersion_test(np.full(40, 4), rng.binomial(4, rate), stratum, seed=seed) for seed in range(100)]
    assert tests[0].test == DEALT
    assert np.mean([test.p_value.value < 0.2 for test in tests]) == pytest.approx(0.2, abs=0.12)


def test_unequal_prompts_are_found_out() -> None:
    rng = np.random.default_rng(2)
    c = rng.binomial(8, rng.beta(0.5, 0.5, 40))
    assert dispersion_test(np.full(40, 8), c, np.zeros(40)).p_value.value == pytest.approx(0.0005)


def test_one_outcome_cannot_be_dealt_anew() -> None:
    test = dispersion_test([4, 4, 4], [4, 4, 4], [1, 1, 1])
    assert test.z.undefined == test.p_value.undefined
    assert "no other deal" in test.z.undefined


def test_variance_of_one_group_is_undefined() -> None:
    estimate = estimate_rate_variance([4], [2], ["a"], resampling=Resampling(num_resamples=10, seed=0))
    assert estimate.undefined == "one group has no variance between groups"


def test_variance_estimate_is_the_unbiased_one_with_an_interval() -> None:
    rng = np.random.default_rng(3)
    n, c = np.full(60, 8), rng.binomial(8, rng.beta(2, 2, 60))
    estimate = estimate_rate_variance(n, c, np.arange(60), resampling=Resampling(num_resamples=500, seed=0))
    rates = c / n
    assert estimate.value == pytest.approx(rates.var(ddof=1) - np.mean(rates * (1 - rates)) / 7)
    assert estimate.low < 0.05 < estimate.high

from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.outcomes.forecast import PassRates, fit_pass_rates, goodness_of_fit
from gradscope.metrics.outcomes.mixture import (
    BetaMixture,
    PassCounts,
    fit_beta_binomial,
)


def drawn(
    num_prompts: int = 400, num_samples: int = 16, a: float = 0.5, b: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.full(num_prompts, num_samples), rng.binomial(num_samples, rng.beta(a, b, num_prompts))


def fitted(**options: float) -> PassRates:
    rates = fit_pass_rates(*drawn(**options))
    assert isinstance(rates, PassRates)
    return rates


def test_forecast_reaches_the_truth() -> None:
    rates = fitted()
    truth = BetaMixture(a=np.array(0.5), b=np.array(1.5))
    for size in (32, 64):
        dead = float(truth.all_pass(size) + truth.all_fail(size))
        assert rates.degeneracy(size).low <= dead <= rates.degeneracy(size).high
        assert rates.pass_at_k(size).value == pytest.approx(1 - float(truth.all_fail(size)), abs=0.04)
        assert rates.pass_hat_k(size).value == pytest.approx(float(truth.all_pass(size)), abs=0.04)


def test_forecast_far_beyond_the_samples_is_refused() -> None:
    forecast = fitted(num_samples=4).degeneracy(33)
    assert forecast.undefined == "G = 33 is more than 8 times the 4 samples of a prompt"


def test_forecast_that_could_be_anything_is_refused() -> None:
    rates = fit_pass_rates([2] * 12, [0] * 11 + [1])
    assert isinstance(rates, PassRates)
    reasons = [rates.pass_at_k(k).undefined or "" for k in (8, 16)]
    assert any("could be anything from" in reason for reason in reasons)


def test_few_prompts_or_none_mixed_show_no_distribution() -> None:
    assert "at least 10 prompts, there are 2" in str(fit_pass_rates([4] * 20, [2] * 20, ["a", "b"] * 10))
    assert "no group is mixed" in str(fit_pass_rates([4] * 20, [0, 4] * 10))


def test_repeated_prompts_widen_a_forecast() -> None:
    n, c = drawn(num_prompts=30)
    once = fit_pass_rates(np.tile(n, 4), np.tile(c, 4))
    clustered = fit_pass_rates(np.tile(n, 4), np.tile(c, 4), np.tile(np.arange(30), 4))
    assert isinstance(once, PassRates)
    assert isinstance(clustered, PassRates)
    widths = [r.degeneracy(32).high - r.degeneracy(32).low for r in (once, clustered)]
    assert widths[1] > 1.5 * widths[0]


def test_shape_that_is_not_beta_is_refuted() -> None:
    rng = np.random.default_rng(0)
    two_kinds = PassCounts.of(np.full(600, 12), rng.binomial(12, np.where(rng.random(600) < 0.5, 0.25, 0.75)))
    assert goodness_of_fit(two_kinds, fit_beta_binomial(two_kinds)).value < 0.001
    beta = PassCounts.of(*drawn(num_prompts=600))
    assert goodness_of_fit(beta, fit_beta_binomial(beta)).value > 0.01


def test_fit_of_few_groups_cannot_be_tested() -> None:
    counts = PassCounts.of([4] * 6, [0, 1, 2, 3, 4, 4])
    assert "too few to test a shape" in goodness_of_fit(counts, fit_beta_binomial(counts)).undefined

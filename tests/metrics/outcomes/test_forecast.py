import numpy as np
import pytest

from gradscope.metrics.outcomes.forecast import PassRates, fit_pass_rates, goodness_of_fit
from gradscope.metrics.outcomes.mixture import InflatedBeta, PassCounts, fit_inflated_beta


def drawn(
    num_prompts: int = 400, num_samples: int = 16, a: float = 0.5, b: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.full(num_prompts, num_samples), rng.binomial(num_samples, rng.beta(a, b, num_prompts))


def fitted(**options: float) -> PassRates:
    return fitted_to(*drawn(**options))


def fitted_to(num_samples: np.ndarray, num_passing: np.ndarray) -> PassRates:
    rates = fit_pass_rates(num_samples, num_passing)
    assert isinstance(rates, PassRates)
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(("at_zero", "at_one", "a"), [(0.575, 0.0, 2.0), (0.3, 0.3, 5.0)])
def test_forecast_holds_where_prompts_are_out_of_reach(at_zero: float, at_one: float, a: float) -> None:
    """The regime in which a plain beta-binomial forecast held 36 to 47 times of 60."""
    truth, held, given = InflatedBeta(a=a, b=a, at_zero=at_zero, at_one=at_one), 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        kind = rng.random(200)
        rates = np.where(kind < at_zero, 0.0, np.where(kind < at_zero + at_one, 1.0, rng.beta(a, a, 200)))
        forecast = fitted_to(np.full(200, 8), rng.binomial(8, rates)).pass_at_k(64)
        given += forecast.is_defined
        held += forecast.is_defined and forecast.low <= 1 - truth.all_fail(64) <= forecast.high
    assert given >= 16
    assert held >= given - 2


def test_forecast_reaches_the_truth() -> None:
    rates = fitted()
    truth = InflatedBeta(a=0.5, b=1.5)
    for size in (32, 64):
        dead = truth.all_pass(size) + truth.all_fail(size)
        assert rates.degeneracy(size).low <= dead <= rates.degeneracy(size).high
        assert rates.pass_at_k(size).value == pytest.approx(1 - truth.all_fail(size), abs=0.04)
        assert rates.pass_hat_k(size).value == pytest.approx(truth.all_pass(size), abs=0.04)


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


def test_repeated_prompts_widen_a_forecast_and_refute_no_shape() -> None:
    n, c = drawn(num_prompts=100)
    once, clustered = fitted_to(n, c), fit_pass_rates(np.tile(n, 4), np.tile(c, 4), np.tile(np.arange(100), 4))
    assert isinstance(clustered, PassRates)
    assert clustered.goodness_of_fit.value == pytest.approx(once.goodness_of_fit.value, abs=0.1)
    widths = [np.ptp(rates.degeneracy(32).interval) for rates in (once, clustered)]
    assert widths[1] > 0.85 * widths[0]


def test_shape_that_is_not_beta_is_refuted() -> None:
    rng = np.random.default_rng(0)
    two_kinds = np.full(600, 12), rng.binomial(12, np.where(rng.random(600) < 0.5, 0.25, 0.75))
    assert fitted_to(*two_kinds).goodness_of_fit.value < 0.001
    assert "no inflated beta distribution of pass rates fits the counts (p = " in (
        fitted_to(*two_kinds).degeneracy(24).undefined
    )
    assert fitted(num_prompts=600).goodness_of_fit.value > 0.05


def test_fit_of_few_groups_cannot_be_tested() -> None:
    counts = PassCounts.of([4] * 6, [0, 1, 2, 3, 4, 4])
    assert "too few to test a shape" in goodness_of_fit(counts, fit_inflated_beta(counts), 6).undefined

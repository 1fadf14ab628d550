import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog
from scipy.stats import binom

from gradscope.metrics.outcomes import forecast


def drawn(
    num_prompts: int = 400, num_samples: int = 16, a: float = 0.5, b: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.full(num_prompts, num_samples), rng.binomial(num_samples, rng.beta(a, b, num_prompts))


def test_chances_agree_with_scipy() -> None:
    inner = stats.betabinom.pmf(np.arange(10), 9, 0.4, 2.0)
    assert forecast.InflatedBeta(a=0.4, b=2.0).chances(9) == pytest.approx(inner)
    inflated = forecast.InflatedBeta(a=0.4, b=2.0, at_zero=0.2, at_one=0.1)
    assert inflated.chances(9) == pytest.approx(0.7 * inner + 0.2 * (np.arange(10) == 0) + 0.1 * (np.arange(10) == 9))
    assert (inflated.all_fail(9), inflated.all_pass(9)) == pytest.approx(tuple(inflated.chances(9)[[0, 9]]))
    assert forecast.binomial_chances(9, 0.3) == pytest.approx(stats.binom.pmf(np.arange(10), 9, 0.3))
    assert forecast.binomial_chances(3, [0.0, 1.0]).T.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


def test_beta_binomial_finds_its_parameters() -> None:
    fit = forecast.fit_inflated_beta(forecast.PassCounts.from_counts(*drawn(num_prompts=20_000)))
    assert (fit.a, fit.b) == pytest.approx((0.5, 1.5), rel=0.06)
    assert (fit.at_zero, fit.at_one, fit.num_parameters) == (0.0, 0.0, 2)


@pytest.mark.parametrize("ends", [(0.575, 0.0), (0.0, 0.3), (0.3, 0.3)])
def test_inflation_is_found_where_it_is(ends: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    kind, inner = rng.random(4000), rng.beta(2, 2, 4000)
    rates = np.where(kind < ends[0], 0.0, np.where(kind < sum(ends), 1.0, inner))
    # Groups of two sizes tell the two ends apart for each size of its own.
    n = np.where(np.arange(4000) % 2, 8, 12)
    fit = forecast.fit_inflated_beta(forecast.PassCounts.from_counts(n, rng.binomial(n, rates)))
    assert (fit.at_zero, fit.at_one) == pytest.approx(ends, abs=0.03)
    assert (fit.at_zero == 0.0, fit.at_one == 0.0) == (ends[0] == 0.0, ends[1] == 0.0)
    assert fit.num_parameters == 2 + sum(end > 0 for end in ends)
    assert (fit.a, fit.b) == pytest.approx((2.0, 2.0), rel=0.25)


def test_npmle_has_the_highest_likelihood() -> None:
    counts = forecast.PassCounts.from_counts(*drawn(num_samples=4))
    free = forecast.fit_npmle(counts)
    chances = stats.binom.pmf(np.arange(5)[:, None], 4, free.points) @ free.weights
    log_likelihood = counts.weight @ np.log(chances)
    assert log_likelihood >= counts.weight @ np.log(forecast.fit_inflated_beta(counts).chances(4)) - 1e-6
    assert free.weights.sum() == pytest.approx(1.0)
    # At its maximum no point of the grid would raise it (Lindsay 1983).
    gradient = (counts.weight / chances) @ stats.binom.pmf(np.arange(5)[:, None], 4, free.points) / counts.weight.sum()
    assert gradient.max() < 1.005


@pytest.mark.parametrize(("n", "c"), [([], []), ([4], [5])])
def test_impossible_counts_are_refused(n: list[int], c: list[int]) -> None:
    with pytest.raises(ValueError, match="a distribution needs prompts with 0 <= c <= n"):
        forecast.PassCounts.from_counts(n, c)


def bounds_of(
    num_samples: np.ndarray, num_passing: np.ndarray, prompts: np.ndarray | None = None
) -> forecast.RateBounds:
    groups = np.arange(len(num_samples)) if prompts is None else prompts
    fit = forecast.fit_npmle(forecast.PassCounts.from_counts(num_samples, num_passing))
    return forecast.RateBounds.from_counts(num_samples, num_passing, groups, fit)


def unsolved(k: int):
    return lambda p: (1 - p) ** k


def starved(seed: int, num_prompts: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rates = np.where(rng.random(num_prompts) < 0.6, 0.0, rng.beta(2, 2, num_prompts))
    return np.full(num_prompts, n), rng.binomial(n, rates)


@pytest.mark.slow  # a simulation
def test_many_prompts_leave_what_their_counts_leave_open() -> None:
    """Of a million prompts the bounds are those that a linear program gives for the expected counts themselves."""
    points = np.linspace(0, 1, 401) ** 2
    counts = binom.pmf(np.arange(9)[:, None], 8, points)
    target = counts @ np.full(401, 1 / 401)
    ends = [s * linprog(s * unsolved(32)(points), A_eq=counts, b_eq=target, method="highs").fun for s in (1, -1)]
    num_prompts = 1_000_000
    c = np.repeat(np.arange(9), np.round(target * num_prompts).astype(int))
    low, high = bounds_of(np.full(len(c), 8), c).interval(unsolved(32))
    assert low == pytest.approx(ends[0], abs=0.01)
    assert high == pytest.approx(ends[1], abs=0.01)
    assert low < ends[0] + 1e-3
    assert high > ends[1] - 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 100])
def test_bounds_hold_without_any_shape(n: int) -> None:
    truth = 0.6 + 0.4 * float(np.mean((1 - np.random.default_rng(9).beta(2, 2, 100_000)) ** (4 * n)))
    ends = np.array([bounds_of(*starved(seed, 150, n)).interval(unsolved(4 * n)) for seed in range(10)])
    assert np.sum((ends[:, 0] <= truth) & (truth <= ends[:, 1])) >= 9
    assert np.all((ends >= 0) & (ends <= 1))


def test_more_prompts_narrow_the_bounds() -> None:
    few, many = (np.ptp(bounds_of(*starved(0, size, 8)).interval(unsolved(16))) for size in (50, 5000))
    assert many < few / 3


def test_groups_of_one_prompt_are_no_further_prompts() -> None:
    n, c = starved(0, 60, 8)
    separate = bounds_of(np.tile(n, 5), np.tile(c, 5)).interval(unsolved(16))
    together = bounds_of(np.tile(n, 5), np.tile(c, 5), np.tile(np.arange(60), 5)).interval(unsolved(16))
    assert np.ptp(together) > 1.5 * np.ptp(separate)


def test_groups_of_several_sizes_share_their_cells() -> None:
    rng = np.random.default_rng(0)
    n = rng.choice([4, 7, 200], 300)
    bounds = bounds_of(n, rng.binomial(n, rng.beta(0.5, 1.5, 300)))
    assert len(bounds.expected) <= 66
    assert bounds.chances.sum(axis=0) == pytest.approx(1.0)
    low, high = bounds.interval(lambda p: p)
    assert low < 0.25 < high


def fitted(**options: float) -> forecast.PassRates:
    return fitted_to(*drawn(**options))


def fitted_to(num_samples: np.ndarray, num_passing: np.ndarray) -> forecast.PassRates:
    rates = forecast.fit_pass_rates(num_samples, num_passing)
    assert isinstance(rates, forecast.PassRates)
    return rates


@pytest.mark.slow
def test_forecast_holds_where_prompts_are_out_of_reach() -> None:
    """The regime in which a plain beta-binomial forecast held 36 to 47 times of 60."""
    truth, held, inputs = forecast.InflatedBeta(a=5.0, b=5.0, at_zero=0.3, at_one=0.3), 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        kind = rng.random(200)
        rates = np.where(kind < 0.3, 0.0, np.where(kind < 0.6, 1.0, rng.beta(5, 5, 200)))
        estimate = fitted_to(np.full(200, 8), rng.binomial(8, rates)).pass_at_k(64)
        inputs += estimate.is_defined
        held += estimate.is_defined and estimate.low <= 1 - truth.all_fail(64) <= estimate.high
    assert inputs >= 16
    assert held >= inputs - 2


def test_forecast_reaches_the_truth() -> None:
    rates = fitted()
    truth = forecast.InflatedBeta(a=0.5, b=1.5)
    for size in (32, 64):
        dead = truth.all_pass(size) + truth.all_fail(size)
        assert rates.degeneracy(size).low <= dead <= rates.degeneracy(size).high
        assert rates.pass_at_k(size).value == pytest.approx(1 - truth.all_fail(size), abs=0.04)
        assert rates.pass_hat_k(size).value == pytest.approx(truth.all_pass(size), abs=0.04)


def test_forecast_far_beyond_the_samples_is_refused() -> None:
    estimate = fitted(num_samples=4).degeneracy(33)
    assert estimate.undefined == "G = 33 is more than 8 times the 4 samples of a prompt"


def test_forecast_that_could_be_anything_is_refused() -> None:
    rates = forecast.fit_pass_rates([2] * 12, [0] * 11 + [1])
    assert isinstance(rates, forecast.PassRates)
    reasons = [rates.pass_at_k(k).undefined or "" for k in (8, 16)]
    assert any("could be anything from" in reason for reason in reasons)


def test_few_prompts_or_none_mixed_show_no_distribution() -> None:
    assert "at least 10 prompts, there are 2" in str(forecast.fit_pass_rates([4] * 20, [2] * 20, ["a", "b"] * 10))
    assert "no group is mixed" in str(forecast.fit_pass_rates([4] * 20, [0, 4] * 10))


def test_repeated_prompts_widen_a_forecast_and_refute_no_shape() -> None:
    n, c = drawn(num_prompts=100)
    once, clustered = fitted_to(n, c), forecast.fit_pass_rates(np.tile(n, 4), np.tile(c, 4), np.tile(np.arange(100), 4))
    assert isinstance(clustered, forecast.PassRates)
    assert clustered.goodness_of_fit.value == pytest.approx(once.goodness_of_fit.value, abs=0.1)
    widths = [np.ptp(rates.degeneracy(32).interval) for rates in (once, clustered)]
    assert widths[1] > 0.85 * widths[0]


def test_shape_that_is_not_beta_is_refuted() -> None:
    rng = np.random.default_rng(0)
    two_kinds = np.full(600, 12), rng.binomial(12, np.where(rng.random(600) < 0.5, 0.25, 0.75))
    fit = fitted_to(*two_kinds)
    assert fit.goodness_of_fit.value < 0.001
    assert "no inflated beta distribution of pass rates fits the counts (p = " in fit.degeneracy(24).undefined
    assert fitted(num_prompts=600).goodness_of_fit.value > 0.05


def test_fit_of_few_groups_cannot_be_tested() -> None:
    counts = forecast.PassCounts.from_counts([4] * 6, [0, 1, 2, 3, 4, 4])
    result = forecast.goodness_of_fit(counts, forecast.fit_inflated_beta(counts), 6)
    assert "too few to test a shape" in result.undefined

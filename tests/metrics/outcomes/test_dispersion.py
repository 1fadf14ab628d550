import itertools
from collections.abc import Callable

import numpy as np
import pytest

from gradscope.metrics.outcomes import dispersion
from gradscope.metrics.outcomes.dispersion import (
    FEW_DEALS,
    NUM_DEALS,
    dispersion_test,
    estimate_rate_parts,
    estimate_rate_variance,
)
from gradscope.metrics.uncertainty.intervals import Resampling

Deal = Callable[[np.random.Generator, np.ndarray, int, int], np.ndarray]


@pytest.mark.slow
def test_moments_agree_with_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    # z is exact: over many logs made under the hypothesis it has mean 0 and variance 1.
    monkeypatch.setattr(dispersion, "NUM_DEALS", 9)
    rng = np.random.default_rng(0)
    scores = []
    for seed in range(300):
        n = rng.integers(2, 7, 210)
        test = dispersion_test(n, rng.binomial(n, 0.3), np.repeat(np.arange(7), 30), seed=seed)
        scores.append(test.z.value)
    assert np.mean(scores) == pytest.approx(0.0, abs=0.2)
    assert np.std(scores) == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
def test_p_value_is_uniform_under_the_hypothesis_and_a_drifting_rate_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    stratum, rate = np.repeat([1, 2], 20), np.repeat([0.1, 0.9], 20)
    tests = [dispersion_test(np.full(40, 4), rng.binomial(4, rate), stratum, seed=seed) for seed in range(100)]
    assert tests[0].test == f"{NUM_DEALS} deals of the outcomes within steps"
    assert np.mean([test.p_value.value < 0.2 for test in tests]) == pytest.approx(0.2, abs=0.12)


def test_unequal_prompts_are_found_out() -> None:
    rng = np.random.default_rng(2)
    c = rng.binomial(8, rng.beta(0.5, 0.5, 40))
    assert dispersion_test(np.full(40, 8), c, np.zeros(40)).p_value.value == pytest.approx(0.0005)


def test_beyond_what_deals_can_tell_nothing_is_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing in each of 700 groups: no deal comes near, and the bound says so without one."""
    n, c = np.full(700, 8), np.tile([0, 8], 350)
    test = dispersion_test(n, c, np.ones(700))
    assert test.test.startswith("Cantelli's inequality")
    assert test.z.value is not None
    assert test.p_value.value == pytest.approx(1 / (1 + test.z.value**2))
    assert test.p_value.value < 1 / (1 + NUM_DEALS)
    monkeypatch.setattr(dispersion, "NUM_DEALS", 10**9)
    monkeypatch.setattr(dispersion, "_MAX_DRAWS", 0)
    assert dispersion_test(n, c, np.ones(700)).p_value.value == 1 / 200  # as few as any deal can make it


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


@pytest.mark.parametrize("flipped", [False, True])
def test_rare_passes_leave_room_for_prompts_that_differ(flipped: bool) -> None:
    """Pass rates of Beta(1, 200), whose deviation is 0.005: hardly a prompt passes twice, and 0 is not all there is."""
    for seed in range(20):
        passed = np.random.default_rng(seed).binomial(4, np.random.default_rng(seed).beta(1, 200, 300))
        estimate = estimate_rate_variance(
            np.full(300, 4), 4 - passed if flipped else passed, np.arange(300), resampling=Resampling(num_resamples=100)
        )
        assert estimate.high is not None
        assert 0.005 < estimate.high**0.5 < 0.2


def deals_by_hand(sizes: list[int], passing: int) -> dict[int, float]:
    """Disagreeing pairs -> chance, over all choices of the passing rollouts."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    counts: dict[int, int] = {}
    for chosen in itertools.combinations(range(len(group)), passing):
        passed = np.bincount(group[list(chosen)], minlength=len(sizes))
        pairs = int(np.sum(passed * (np.array(sizes) - passed)))
        counts[pairs] = counts.get(pairs, 0) + 1
    total = sum(counts.values())
    return {pairs: count / total for pairs, count in counts.items()}


def by_column(rng: np.random.Generator, sizes: np.ndarray, passing: int, num_deals: int) -> np.ndarray:
    """One stratum twice, each dealt for itself."""
    once, again = (dispersion._deal_by_column(rng, [(sizes, passing)] * times, num_deals) for times in (1, 2))
    assert np.mean(again) == pytest.approx(2 * np.mean(once), rel=0.05)
    return once


@pytest.mark.parametrize("deal", [dispersion._deal_by_group, by_column])
@pytest.mark.parametrize(("sizes", "passing"), [([4, 4, 4], 5), ([2, 3, 5, 2], 4), ([2] * 7, 3)])
def test_both_ways_of_dealing_are_the_uniform_one(deal: Deal, sizes: list[int], passing: int) -> None:
    dealt = deal(np.random.default_rng(0), np.array(sizes), passing, 20_000)
    for pairs, chance in deals_by_hand(sizes, passing).items():
        assert np.mean(dealt == pairs) == pytest.approx(chance, abs=0.012)


@pytest.mark.slow  # a simulation
@pytest.mark.parametrize(("strata", "name"), [(1, "_deal_by_column"), (150, "_deal_by_group")])
def test_rare_passes_are_no_evidence(strata: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rate of .005 for 1,200 groups of 4: a normal p-value rejects 11 % of such logs at 5 %."""
    ways = []
    inner = getattr(dispersion, name)
    monkeypatch.setattr(dispersion, name, lambda *arguments: ways.append(name) or inner(*arguments))
    rng = np.random.default_rng(4)
    step = np.repeat(np.arange(strata), 1200 // strata)
    tests = [dispersion_test(np.full(1200, 4), rng.binomial(4, 0.005, 1200), step, seed=seed) for seed in range(60)]
    p_values = np.array([1.0 if test.p_value.value is None else test.p_value.value for test in tests])
    assert len(ways) > 40 * strata
    assert np.mean(p_values <= 0.05) <= 0.09  # three standard errors above 5 %
    assert p_values.min() > 0.001


def test_a_large_log_is_dealt_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispersion, "_MAX_DRAWS", 8 * FEW_DEALS)
    test = dispersion_test([4] * 8, [0, 4] * 4, [1] * 8)
    assert test.test == "199 deals of the outcomes within steps"
    assert test.p_value.value == pytest.approx(0.005)


def visited(rates: np.ndarray, shared: float, seed: int, *, size: int = 4, steps: int = 8) -> tuple[np.ndarray, ...]:
    """All prompts at every step; rollouts of a group copy a common one with chance sqrt(shared): rho = shared."""
    rng = np.random.default_rng(seed)
    step, prompt = np.repeat(np.arange(steps), len(rates)), np.tile(np.arange(len(rates)), steps)
    own = rng.random((len(step), size)) < rates[prompt][:, None]
    common = rng.random(len(step)) < rates[prompt]
    copied = rng.random((len(step), size)) < shared**0.5
    return step, prompt, np.full(len(step), size), np.where(copied, common[:, None], own).sum(axis=1)


@pytest.mark.parametrize("shared", [0.0, 0.05, 0.2])
def test_what_rollouts_of_a_group_share_is_of_the_visit(shared: float) -> None:
    """One rate for all: 80 to 100 % of such logs were said to have prompts that differ."""
    few = Resampling(num_resamples=200)
    parts = [estimate_rate_parts(*visited(np.full(24, 0.4), shared, seed), resampling=few) for seed in range(40)]
    assert sum(stays.low > 0 for stays, _ in parts) <= 3
    assert np.mean([of_visit.value for _, of_visit in parts]) == pytest.approx(shared * 0.24, abs=0.006)


def test_what_stays_with_prompts_is_their_variance() -> None:
    few = Resampling(num_resamples=200)
    rates = [np.random.default_rng(100 + seed).beta(2, 2, 40) for seed in range(40)]
    parts = [estimate_rate_parts(*visited(own, 0.1, seed), resampling=few) for seed, own in enumerate(rates)]
    assert all(stays.low > 0 for stays, _ in parts)
    assert sum(stays.low <= 0.05 <= stays.high for stays, _ in parts) >= 35  # Var of Beta(2, 2)
    truth = 0.1 * (0.25 - 0.05)
    assert sum(of_visit.low <= truth <= of_visit.high for _, of_visit in parts) >= 35


def test_prompts_that_never_return_do_not_say_what_stays() -> None:
    once = estimate_rate_parts([1, 1, 2, 2], list("abcd"), [4] * 4, [0, 4, 1, 2], resampling=Resampling())
    alone = estimate_rate_parts([1, 2], list("aa"), [4] * 2, [0, 4], resampling=Resampling())
    for part in (*once, *alone):
        assert part.undefined == "no prompt is seen at two steps, so what stays with it is not known"

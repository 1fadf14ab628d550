import itertools
from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from scipy import stats

from gradscope.metrics.outcomes import degeneracy
from gradscope.metrics.outcomes.degeneracy import (
    FEW_DEALS,
    NUM_DEALS,
    dispersion_test,
    estimate_rate_parts,
    estimate_rate_variance,
)
from gradscope.metrics.outcomes.jensen_gap import estimate_gap_parts
from gradscope.metrics.uncertainty.intervals import Resampling


def table_of(rows: list[tuple[int, str, int, int]]) -> degeneracy.GroupTable:
    """Rows of (step, prompt, size, passing)."""
    step, prompt, size, passing = (np.array(column) for column in zip(*rows, strict=True))
    return degeneracy.GroupTable(
        step=step,
        prompt=prompt,
        size=size,
        dead=(passing == 0) | (passing == size),
        num_passing=passing,
        level_counts=np.array([[int(c), int(n - c)] for n, c in zip(size, passing, strict=True)]),
    )


def test_a_dozen_prompts_over_two_steps_know_no_less_than_the_range() -> None:
    # Three prompts of twelve are mixed: resamples without them have no error, and the studentized ends run away.
    rows = [(1 + i // 6, f"p{i}", 4, {0: 1, 7: 1, 9: 3}.get(i, 4)) for i in range(12)]
    estimates = degeneracy.estimate_degeneracies([table_of(rows)], base_pass_rate="step")[0]
    assert 0.0 <= estimates.iid_prediction.low < estimates.iid_prediction.value < estimates.iid_prediction.high <= 1.0
    table = table_of(rows)
    parts = estimate_gap_parts(table.draws, degeneracy.estimate_degeneracies([table])[0].jensen_gap, None)
    for part in (estimates.jensen_gap, *parts):
        assert 0.0 <= part.low <= part.value < part.high <= 1.0


def test_repeated_prompts_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    passing = [0 if rng.random() < 0.5 else 2 for _ in range(20)]
    once = [(1, f"p{i}", 4, c) for i, c in enumerate(passing)]
    repeated = table_of([(step, *row[1:]) for step in range(1, 9) for row in once])
    clustered = degeneracy.estimate_degeneracies([repeated])[0].frac_reward_zero_std
    assert clustered.num_units == 20
    single = degeneracy.estimate_degeneracies([table_of(once)])[0].frac_reward_zero_std
    assert (clustered.low, clustered.high) == pytest.approx((single.low, single.high))


def test_smaller_size_is_estimated_without_bias() -> None:
    table = table_of([(1, f"p{i}", 8, i % 9) for i in range(27)])
    at_size = degeneracy.estimate_at_size(table, 4)
    expected = np.mean([(comb(c, 4) + comb(8 - c, 4)) / comb(8, 4) for c in table.num_passing])
    assert at_size.degeneracy.value == pytest.approx(expected)
    assert at_size.iid_prediction.value == pytest.approx(2 * 0.5**4)
    assert at_size.degeneracy.low < expected < at_size.degeneracy.high


def test_larger_size_is_not_forecast() -> None:
    at_size = degeneracy.estimate_at_size(table_of([(1, "a", 4, 0), (1, "b", 8, 0)]), 6)
    reason = "1 of 2 groups have fewer than 6 rollouts (fewest 4)"
    assert at_size.degeneracy.undefined == at_size.jensen_gap.undefined == reason


def test_without_a_threshold_only_equality_is_known() -> None:
    table = degeneracy.GroupTable(
        step=np.array([1, 1]),
        prompt=np.array(["a", "b"]),
        size=np.array([2, 2]),
        dead=np.array([True, False]),
        num_passing=None,
        level_counts=np.array([[2, 0], [1, 1]]),
    )
    estimates = degeneracy.estimate_degeneracies([table])[0]
    assert estimates.frac_reward_zero_std.value == estimates.frac_tied.value == 0.5
    for estimate in (
        estimates.frac_all_pass,
        estimates.frac_all_fail,
        estimates.pass_rate,
        estimates.jensen_gap,
        *estimate_gap_parts(table.draws, estimates.jensen_gap, None),
    ):
        assert estimate.undefined == degeneracy.NO_THRESHOLD
    at_size = degeneracy.estimate_at_size(table, 2)
    assert at_size.degeneracy.value == 0.5
    assert at_size.iid_prediction.undefined == at_size.jensen_gap.undefined == degeneracy.NO_THRESHOLD


def test_steps_together_have_the_estimates_of_each() -> None:
    rows = [(step, f"p{i}", 4, (step * i) % 5) for step in range(1, 6) for i in range(10 + 2 * (step % 2))]
    steps = [table_of([row for row in rows if row[0] == step]) for step in range(1, 6)]
    for table, result in zip(steps, degeneracy.estimate_degeneracies(steps, base_pass_rate="step"), strict=True):
        single = degeneracy.estimate_degeneracies([table], base_pass_rate="step")[0]
        for name in ("frac_reward_zero_std", "frac_all_fail", "pass_rate", "iid_prediction", "jensen_gap"):
            first, other = getattr(single, name), getattr(result, name)
            assert other.value == first.value
            assert other.interval == (first.interval and pytest.approx(first.interval, abs=1e-12))


def test_equal_tables_share_the_estimates_that_each_has_by_itself() -> None:
    rng = np.random.default_rng(1)
    tables = []
    for step in range(60):
        names = rng.permutation(40)[: 1 + step % 4]
        rows = [(step, f"p{name:02}", 2 + step % 2, int(rng.integers(0, 3))) for name in names]
        tables.append(table_of([*rows, (step, rows[0][1], 2, 1)]))
    estimates = degeneracy.estimate_degeneracies(tables)
    assert estimates == [degeneracy.estimate_degeneracies([table])[0] for table in tables]
    assert len({id(single) for single in estimates}) < len(tables)
    single, other = (table_of([(1, first, 2, 1), (1, "m", 2, 0)]) for first in "az")
    estimates = degeneracy.estimate_degeneracies([single, other])
    assert estimates[0] is not estimates[1]


FEW = Resampling(num_resamples=400)


def returns(*groups: tuple[int, str, bool]) -> degeneracy.Persistence:
    step, prompt, dead = zip(*groups, strict=True)
    return degeneracy.dead_persistence(step, prompt, dead, resampling=FEW)


def visits(
    rate: Callable[[float, int, np.random.Generator], float],
    seed: int,
    *,
    num_prompts: int = 40,
    epochs: int = 4,
    a_step: int = 8,
    size: int = 4,
) -> degeneracy.Persistence:
    """Epochs over prompts in random order; the pass rate is a function of how far the run is, and of the prompt."""
    rng, step, groups = np.random.default_rng(seed), 0, []
    num_steps = epochs * num_prompts // a_step
    for _ in range(epochs):
        for block in np.array_split(rng.permutation(num_prompts), num_prompts // a_step):
            step += 1
            for prompt in block:
                passed = rng.binomial(size, rate(step / num_steps, int(prompt), rng))
                groups.append((step, f"p{prompt}", passed in (0, size)))
    return returns(*rng.permutation(np.array(groups, dtype=object)).tolist())


def test_shares_of_next_visits_by_hand() -> None:
    """a: dead, dead, live; b: live, live; c: live, dead; the order of the log does not matter."""
    result = returns(
        *((3, "a", False), (1, "a", True), (2, "a", True)),
        *((1, "b", False), (2, "b", False)),
        *((2, "c", True), (1, "c", False)),
    )
    assert result.num_returns == 4
    assert result.after_dead.value == 1 / 2
    assert result.after_live.value == 1 / 2
    # step 2: dead after dead 1 of 1, after live 1 of 2, so 1/2; step 3 has no return after a live group
    assert result.excess.value == pytest.approx(1 / 2)


def test_the_excess_is_that_of_mantel_and_haenszel() -> None:
    rng = np.random.default_rng(1)
    groups = [(step, f"p{prompt}", bool(rng.random() < 0.5)) for step in (1, 2, 3) for prompt in range(30)]
    dead = {(step, prompt): is_dead for step, prompt, is_dead in groups}
    above = below = 0.0
    for step in (2, 3):
        after = {k: [dead[step, f"p{p}"] for p in range(30) if dead[step - 1, f"p{p}"] is k] for k in (True, False)}
        weight = len(after[True]) * len(after[False]) / 30
        above += weight * (np.mean(after[True]) - np.mean(after[False]))
        below += weight
    assert returns(*groups).excess.value == pytest.approx(above / below)


def test_two_groups_of_a_step_are_one_visit() -> None:
    result = returns((1, "a", True), (1, "a", False), (2, "a", True), (2, "b", False), (1, "b", True))
    assert result.num_returns == 2
    assert (result.after_live.value, result.after_dead.value) == (1.0, 0.0)


def test_an_unknown_answer_says_why() -> None:
    single = returns((1, "a", True), (2, "b", False))
    assert {x.undefined for x in (single.after_dead, single.after_live, single.excess)} == {"no prompt comes back"}
    assert (single.num_returns, single.excess.num_units) == (0, 2)
    dead = returns((1, "a", True), (2, "a", False), (1, "b", True), (2, "b", True))
    assert dead.after_dead.value == 1 / 2
    assert dead.after_live.undefined == "every group before a return is dead"
    alive = returns((1, "a", False), (2, "a", False), (1, "b", False), (2, "b", True))
    assert alive.after_dead.undefined == "every group before a return is alive"
    separate = returns((1, "a", True), (2, "a", True), (1, "b", False), (3, "b", False))
    assert (separate.after_dead.value, separate.after_live.value) == (1.0, 0.0)
    for first in (dead, alive, separate):
        assert first.excess.undefined == "no step has returns after a dead group and after a live one"


def test_few_prompts_have_no_interval() -> None:
    result = returns(*((step, name, name == "a") for step in (1, 2) for name in "abc"))
    assert (result.excess.value, result.excess.interval) == (1.0, None)


def test_a_few_dead_groups_that_come_back_alive_prove_little() -> None:
    groups = [(step, f"p{prompt}", prompt == step and step < 12) for step in range(13) for prompt in range(40)]
    result = returns(*groups)
    assert (result.after_dead.value, result.excess.value) == (0.0, pytest.approx(-1 / 40, abs=0.01))
    assert result.excess.ends[1] > result.after_dead.ends[1] - 0.05 > 0.1


def test_the_excess_is_no_better_known_than_by_the_spread_over_prompts() -> None:
    rng = np.random.default_rng(9)
    dead = rng.binomial(4, 0.05, (20, 12)) == 0  # of a dozen prompts, few are ever alive
    excess = returns(*((step, f"p{prompt:02}", bool(flag)) for (step, prompt), flag in np.ndenumerate(dead))).excess
    before, after = (part - part.mean(axis=1, keepdims=True) for part in (dead[:-1], dead[1:]))
    deviations, weight = (before * (after - excess.value * before)).sum(axis=0), (before**2).sum()
    half = stats.t.ppf(0.975, 11) * np.sqrt(deviations @ deviations * 12 / 11) / weight
    assert excess.ends[0] <= excess.value - half
    assert excess.ends[1] > excess.value + half


EQUAL_PROMPTS = {
    "hard": lambda when, prompt, rng: 0.05,
    "up to one": lambda when, prompt, rng: 0.5 + 0.48 * when,
    "up and down": lambda when, prompt, rng: 0.3 + 0.29 * np.sin(9 * when),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL_PROMPTS)
def test_equally_hard_prompts_do_not_persist(name: str) -> None:
    """The whole interval is above zero in 2.5 % of the logs, whatever the pass rate does over time."""
    results = [visits(EQUAL_PROMPTS[name], seed).excess for seed in range(120)]
    false = sum(excess.side_of_zero > 0 for excess in results)
    assert false <= 12, false  # 5 % of 120 is 6, with three standard errors 13
    assert abs(np.mean([excess.value for excess in results if excess.value is not None])) < 0.03


@pytest.mark.parametrize("shape", [{"num_prompts": 12, "epochs": 10, "a_step": 4}, {"num_prompts": 100, "size": 8}])
def test_prompts_of_unequal_difficulty_persist(shape: dict[str, int]) -> None:
    rates = np.random.default_rng(5).beta(0.3, 0.3, 200)
    results = [visits(lambda when, prompt, rng: rates[prompt], seed, **shape).excess for seed in range(20)]
    assert sum(excess.low > 0 for excess in results) >= 12
    assert all(excess.high > 0.05 for excess in results)


Deal = Callable[[np.random.Generator, np.ndarray, int, int], np.ndarray]


@pytest.mark.slow
def test_moments_agree_with_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    # z is exact: over many logs made under the hypothesis it has mean 0 and variance 1.
    monkeypatch.setattr(degeneracy, "NUM_DEALS", 9)
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
    monkeypatch.setattr(degeneracy, "NUM_DEALS", 10**9)
    monkeypatch.setattr(degeneracy, "_MAX_DRAWS", 0)
    assert dispersion_test(n, c, np.ones(700)).p_value.value == 1 / 200  # as few as any deal can make it


def test_one_outcome_cannot_be_shuffled() -> None:
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
    once, twice = (degeneracy._deal_by_column(rng, [(sizes, passing)] * times, num_deals) for times in (1, 2))
    assert np.mean(twice) == pytest.approx(2 * np.mean(once), rel=0.05)
    return once


@pytest.mark.parametrize("deal", [degeneracy._deal_by_group, by_column])
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
    inner = getattr(degeneracy, name)
    monkeypatch.setattr(degeneracy, name, lambda *arguments: ways.append(name) or inner(*arguments))
    rng = np.random.default_rng(4)
    step = np.repeat(np.arange(strata), 1200 // strata)
    tests = [dispersion_test(np.full(1200, 4), rng.binomial(4, 0.005, 1200), step, seed=seed) for seed in range(60)]
    p_values = np.array([1.0 if test.p_value.value is None else test.p_value.value for test in tests])
    assert len(ways) > 40 * strata
    assert np.mean(p_values <= 0.05) <= 0.09  # three standard errors above 5 %
    assert p_values.min() > 0.001


def test_a_large_log_is_dealt_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(degeneracy, "_MAX_DRAWS", 8 * FEW_DEALS)
    test = dispersion_test([4] * 8, [0, 4] * 4, [1] * 8)
    assert test.test == "199 deals of the outcomes within steps"
    assert test.p_value.value == pytest.approx(0.005)


def visited(rates: np.ndarray, shared: float, seed: int, *, size: int = 4, steps: int = 8) -> tuple[np.ndarray, ...]:
    """All prompts at every step; rollouts of a group copy a common one with chance sqrt(shared): rho = shared."""
    rng = np.random.default_rng(seed)
    step, prompt = np.repeat(np.arange(steps), len(rates)), np.tile(np.arange(len(rates)), steps)
    independent = rng.random((len(step), size)) < rates[prompt][:, None]
    common = rng.random(len(step)) < rates[prompt]
    copied = rng.random((len(step), size)) < shared**0.5
    return step, prompt, np.full(len(step), size), np.where(copied, common[:, None], independent).sum(axis=1)


@pytest.mark.parametrize("shared", [0.0, 0.05, 0.2])
def test_what_rollouts_of_a_group_share_is_of_the_visit(shared: float) -> None:
    """One rate for all: 80 to 100 % of such logs were said to have prompts that differ."""
    few = Resampling(num_resamples=200)
    parts = [estimate_rate_parts(*visited(np.full(24, 0.4), shared, seed), resampling=few) for seed in range(40)]
    assert sum(stays.low > 0 for stays, _ in parts) <= 3
    assert np.mean([visit.value for _, visit in parts]) == pytest.approx(shared * 0.24, abs=0.006)


def test_what_stays_with_prompts_is_their_variance() -> None:
    few = Resampling(num_resamples=200)
    rates = [np.random.default_rng(100 + seed).beta(2, 2, 40) for seed in range(40)]
    parts = [estimate_rate_parts(*visited(row, 0.1, seed), resampling=few) for seed, row in enumerate(rates)]
    assert all(stays.low > 0 for stays, _ in parts)
    assert sum(stays.low <= 0.05 <= stays.high for stays, _ in parts) >= 35  # Var of Beta(2, 2)
    truth = 0.1 * (0.25 - 0.05)
    assert sum(visit.low <= truth <= visit.high for _, visit in parts) >= 35


def test_prompts_that_never_return_do_not_say_what_stays() -> None:
    once = estimate_rate_parts([1, 1, 2, 2], list("abcd"), [4] * 4, [0, 4, 1, 2], resampling=Resampling())
    single = estimate_rate_parts([1, 2], list("aa"), [4] * 2, [0, 4], resampling=Resampling())
    for part in (*once, *single):
        assert part.undefined == "no prompt is seen at two steps, so what stays with it is not known"

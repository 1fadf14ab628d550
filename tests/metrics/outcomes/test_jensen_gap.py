from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes import jensen_gap
from gradscope.metrics.outcomes.degeneracy import GroupTable, estimate_degeneracies
from gradscope.metrics.outcomes.groups import all_equal_unbiased, iid_prediction
from gradscope.metrics.outcomes.jensen_gap import (
    BasePassRate,
    OwnRates,
    estimate_gap_parts,
    estimate_policy_gap,
    own_rates,
)
from gradscope.metrics.uncertainty.intervals import Resampling
from tests.metrics.outcomes.test_degeneracy import table_of


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_gap_of_the_population_is_the_variance_of_the_pass_rates(rates: list[float]) -> None:
    p = np.array(rates)
    for size, factor in ((2, 2), (3, 3)):
        gap = iid_prediction(p, size).mean() - iid_prediction(p.mean(), size)
        assert float(gap) == pytest.approx(factor * p.var(), abs=1e-12)


def test_unbiased_gap_at_two_is_twice_the_unbiased_variance() -> None:
    n, c = np.full(40, 6), np.random.default_rng(0).integers(0, 7, 40)
    p = c / n
    # E[p_x^2] without bias is the mean of c(c-1) / n(n-1).
    second_moment = np.mean(c * (c - 1) / (n * (n - 1)))
    gap = all_equal_unbiased(n, np.column_stack([c, n - c]), 2).mean() - iid_prediction(p.mean(), 2)
    assert float(gap) == pytest.approx(2 * (second_moment - p.mean() ** 2))


def split(table: GroupTable, base: BasePassRate = None) -> tuple[Estimate, Estimate, Estimate]:
    """The gap, between prompts and over time."""
    gap = estimate_degeneracies([table], base_pass_rate=base, resampling=Resampling(num_resamples=50))[0].jensen_gap
    return (gap, *estimate_gap_parts(table.draws, gap, base))


groups = st.tuples(st.integers(1, 4), st.sampled_from("abcdef"), st.integers(2, 5), st.integers(0, 5)).map(
    lambda row: (row[0], row[1], row[2], min(row[2], row[3]))
)


@pytest.mark.slow
@given(st.lists(groups, min_size=1, max_size=25), st.none() | st.just("step") | st.floats(0, 1))
@example([(1, "b", 2, 0), (1, "c", 2, 1), (2, "a", 2, 1)], "step")  # no prompt moves the prediction, three the gap
@example([(1, "b", 2, 2), (1, "c", 2, 2), (2, "a", 2, 1)], "step")  # no prediction, so no gap
def test_kinds_and_parts_add_up_exactly(rows: list[tuple[int, str, int, int]], base: BasePassRate) -> None:
    table = table_of(rows)
    estimates = estimate_degeneracies([table], base_pass_rate=base, resampling=Resampling(num_resamples=50))[0]
    kinds = estimates.frac_all_pass.value + estimates.frac_all_fail.value + estimates.frac_tied.value
    assert kinds == pytest.approx(estimates.frac_reward_zero_std.value)
    if estimates.jensen_gap.undefined is None:
        gap = estimates.frac_reward_zero_std.value - estimates.iid_prediction.value
        assert estimates.jensen_gap.value == pytest.approx(gap if isinstance(base, float) else max(gap, 0.0))
    else:
        assert estimates.iid_prediction.undefined or "leaving one of" in estimates.jensen_gap.undefined
    parts = estimate_gap_parts(table.draws, estimates.jensen_gap, base)
    if any(part.undefined for part in parts):
        reasons = ("different prompts", "leaving one of")
        assert all(any(reason in str(part.undefined) for reason in reasons) for part in parts)
    else:
        assert sum(part.value for part in parts) == pytest.approx(estimates.jensen_gap.value, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "num_groups", "size"),
    [
        (lambda rng, count: np.full(count, 0.9), 16, 4),
        (lambda rng, count: rng.beta(1, 9, count), 24, 4),
        (lambda rng, count: rng.beta(9, 1, count), 12, 16),
    ],
)
def test_the_interval_holds_the_gap_at_the_logged_group_size(rates, num_groups: int, size: int) -> None:
    """Of 300 logs 285 are nominal, with two and a half standard errors 275; 85 to 92 % before."""
    population = rates(np.random.default_rng(0), 1_000_000)
    truth = float(iid_prediction(population, size).mean() - iid_prediction(population.mean(), size))
    rng = np.random.default_rng([num_groups, size])
    drawn = [rng.binomial(size, rates(rng, num_groups)) for _ in range(300)]
    logs = [table_of([(1, f"p{i}", size, int(c)) for i, c in enumerate(passed)]) for passed in drawn]
    gaps = [estimates.jensen_gap for estimates in estimate_degeneracies(logs, resampling=Resampling(num_resamples=20))]
    assert sum(gap.low - 1e-9 <= truth <= gap.high + 1e-9 for gap in gaps) >= 275
    assert min(gap.low for gap in gaps) >= 0.0


def test_visits_that_repeat_a_group_make_the_gap_no_surer() -> None:
    passed = [0] + [1] * 5 + [2] * 4
    once, often = ([(step, f"p{i}", 4, c) for step in range(n) for i, c in enumerate(passed)] for n in (1, 10))
    gaps = [split(table_of(rows))[0] for rows in (once, often)]
    assert gaps[0].interval == pytest.approx(gaps[1].interval)


def returning(rng: np.random.Generator, rates: np.ndarray, num_visits: int, size: int) -> GroupTable:
    """Each prompt once at each of so many steps."""
    passed = rng.binomial(size, rates, (num_visits, len(rates)))
    return table_of([(step, f"p{i}", size, int(c)) for step, row in enumerate(passed) for i, c in enumerate(row)])


@pytest.mark.parametrize(
    ("a", "b", "num_prompts", "num_visits"), [(0.2, 2, 10, 10), (4, 0.3, 24, 8)], ids=["hard", "easy"]
)
def test_the_interval_holds_the_gap_where_prompts_return(a: float, b: float, num_prompts: int, num_visits: int) -> None:
    """Of 100 logs 95 are nominal, with two standard errors 91; 76 and 86 before."""
    rng, population = np.random.default_rng(0), np.random.default_rng(1).beta(a, b, 1_000_000)
    truth = float(iid_prediction(population, 4).mean() - iid_prediction(population.mean(), 4))
    logs = [returning(rng, rng.beta(a, b, num_prompts), num_visits, 4) for _ in range(100)]
    gaps = [estimates.jensen_gap for estimates in estimate_degeneracies(logs, resampling=Resampling(num_resamples=20))]
    assert sum(gap.low <= truth <= gap.high for gap in gaps) >= 91


@pytest.mark.parametrize(("size", "error"), [(2, 1e-12), (3, 1e-12), (4, 0.01)])  # exact for groups of 2 and 3
def test_pooling_over_time_makes_a_gap_of_its_own(size: int, error: float) -> None:
    # Step 1 never passes, step 2 always does: each step is as its own p predicts.
    gap, between, over_time = split(
        table_of([(1, f"a{i}", size, 0) for i in range(9)] + [(2, f"b{i}", size, size) for i in range(9)])
    )
    assert gap.value == pytest.approx(1 - 2 * 0.5**size)
    assert over_time.value == pytest.approx(gap.value, abs=error)
    assert between.value == pytest.approx(0.0, abs=error)
    assert over_time.interval is None  # no prompt moves it: nothing tells how sure it is


def test_a_single_block_of_steps_has_no_split() -> None:
    table = table_of([(step, f"{step}{i}", 4, 2) for step in (1, 2) for i in range(4)])
    gap, _, over_time = split(table)
    assert gap.is_defined
    assert "a split over time needs two blocks of steps with 5 different prompts each" in over_time.undefined
    gap, between, over_time = split(table, 0.5)
    assert over_time.value == pytest.approx(0.0)
    assert between.value == pytest.approx(gap.value)


def test_parts_of_a_simulated_log_have_intervals_that_hold_their_truth() -> None:
    rng = np.random.default_rng(0)
    theta, step = rng.normal(0, 1.5, 240), np.repeat(np.arange(30), 8)
    held = []
    for seed in range(25):
        rates = 1 / (1 + np.exp(-theta[:, None] - np.linspace(-1, 1, 30)))
        order = np.random.default_rng(seed).permutation(240)
        passed = np.random.default_rng(seed + 100).binomial(4, rates[order, step])
        rows = list(zip(step.tolist(), order.astype(str), [4] * 240, passed.tolist(), strict=True))
        _, _, over_time = split(table_of(rows))
        truth = iid_prediction(rates.mean(axis=0), 4).mean() - float(iid_prediction(rates.mean(), 4))
        held.append(over_time.low <= truth <= over_time.high)
    assert np.mean(held) >= 0.8


@pytest.mark.slow
def test_the_part_between_prompts_is_no_surer_than_the_gap() -> None:
    """Beta(4, 4) leaves most logs of 32 groups of 8 without a dead group; the true part is 4.3 points."""
    population = np.random.default_rng(1).beta(4, 4, 1_000_000)
    truth = float(iid_prediction(population, 8).mean() - iid_prediction(population.mean(), 8))
    rng, held = np.random.default_rng(0), []
    for _ in range(100):
        passed = rng.binomial(8, rng.beta(4, 4, 32)).tolist()
        gap, between, over_time = split(table_of([(i // 8, f"p{i}", 8, c) for i, c in enumerate(passed)]))
        assert between.value + over_time.value == pytest.approx(gap.value)
        assert 0.0 <= between.low <= between.value < between.high <= 1.0
        held.append(between.low <= truth <= between.high)
    assert sum(held) >= 91  # two standard errors below the nominal 95; 81 before


def test_unequal_prompts_make_a_gap_within_a_step() -> None:
    _, between, over_time = split(table_of([(1, f"p{i}", 4, 4 * (i % 2)) for i in range(20)]))
    assert between.value == pytest.approx(1 - 2 * 0.5**4)
    assert over_time.value == pytest.approx(0.0)


def test_prediction_for_unequal_groups_is_the_mean_over_their_sizes() -> None:
    estimates = estimate_degeneracies([table_of([(1, "a", 2, 1), (1, "b", 4, 2)])])[0]
    assert estimates.iid_prediction.value == pytest.approx((iid_prediction(0.5, 2) + iid_prediction(0.5, 4)) / 2)


def test_given_pass_rate_replaces_that_of_the_log() -> None:
    estimates = estimate_degeneracies([table_of([(1, f"p{i}", 4, 2) for i in range(6)])], base_pass_rate=0.9)[0]
    assert estimates.pass_rate.value == 0.5
    assert estimates.iid_prediction.value == pytest.approx(0.9**4 + 0.1**4)


Group = tuple[int, str, int, float]  # step, prompt, size, rate


def rates_of(groups: list[Group]) -> OwnRates | str:
    step, prompt, size, rate = zip(*groups, strict=True)
    return own_rates(np.array(step), np.array(prompt), np.array(size), np.array(rate))


def by_choices(groups: list[Group], size: int) -> float:
    """The mean over all choices of different prompts, each as often as it has groups."""
    visits, sums = dict[str, float](), dict[str, float]()
    for _, prompt, _, rate in groups:
        visits[prompt] = visits.get(prompt, 0.0) + 1
        sums[prompt] = sums.get(prompt, 0.0) + rate
    chosen = list(combinations(visits, size))
    weights = [np.prod([visits[prompt] for prompt in prompts]) for prompts in chosen]
    means = {prompt: sums[prompt] / visits[prompt] for prompt in visits}
    values = [np.prod([means[p] for p in prompts]) + np.prod([1 - means[p] for p in prompts]) for prompts in chosen]
    return float(np.average(values, weights=weights))


rows = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from("abcdefgh"), st.just(3), st.floats(0, 1).map(lambda r: round(r, 3))),
    min_size=4,
    max_size=14,
)


@pytest.mark.slow
@given(rows)
def test_one_block_is_the_mean_over_choices_of_different_prompts(groups: list[Group]) -> None:
    groups = [(1, *group[1:]) for group in groups]
    rates = rates_of(groups)
    if isinstance(rates, str):
        assert len({prompt for _, prompt, _, _ in groups}) < 4
        return
    prompts = sorted({prompt for _, prompt, _, _ in groups})
    assert rates.by_step[0] == pytest.approx(by_choices(groups, 3), abs=1e-12)
    for row, prompt in enumerate(prompts, start=1):
        left = [group for group in groups if group[1] != prompt]
        assert rates.by_step[row] == pytest.approx(by_choices(left, 3), abs=1e-12)
    np.testing.assert_allclose(rates.pooled, rates.by_step)
    assert rates.num_blocks == 1


def test_small_steps_are_taken_together() -> None:
    groups: list[Group] = [(step, f"{step}-{i}", 3, step / 10) for step in range(1, 8) for i in range(2)]
    rates = rates_of(groups)
    assert not isinstance(rates, str)
    assert rates.num_blocks == 3  # of two, two and three steps
    blocks = [[g for g in groups if g[0] in steps] for steps in ((1, 2), (3, 4), (5, 6, 7))]
    expected = sum(len(block) * by_choices(block, 3) for block in blocks) / len(groups)
    assert rates.by_step[0] == pytest.approx(expected)
    assert rates.pooled[0] == pytest.approx(by_choices(groups, 3))
    assert rates.over_time[0] == pytest.approx((expected - by_choices(groups, 3)) * 13 / 14)


def test_groups_of_unequal_size_each_count_with_their_own() -> None:
    groups: list[Group] = [(1, f"p{i}", 2 + i % 2, 0.1 * i) for i in range(8)]
    rates = rates_of(groups)
    assert not isinstance(rates, str)
    assert rates.by_step[0] == pytest.approx((by_choices(groups, 2) + by_choices(groups, 3)) / 2)


def test_too_few_prompts_are_a_reason() -> None:
    groups: list[Group] = [(1, "a", 4, 0.5), (2, "b", 4, 0.5), (3, "a", 4, 0.5)]
    assert rates_of(groups) == "groups of 4 rollouts need 5 different prompts to tell p^G without bias, the log has 2"


@pytest.mark.parametrize("size", [2, 64, 256])
def test_large_groups_and_many_prompts_lose_no_digits(size: int) -> None:
    groups: list[Group] = [(1, f"p{i}", size, 0.9) for i in range(size + 40)]
    rates = rates_of(groups)
    assert not isinstance(rates, str)
    np.testing.assert_allclose(rates.by_step, iid_prediction(0.9, size), rtol=1e-10)


@pytest.mark.slow  # a simulation
def test_spread_alone_makes_no_part_over_time() -> None:
    """480 prompts, 8 a step, one population: the plug-in says 0.05."""
    results = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rate = rng.binomial(4, rng.beta(0.7, 0.7, 480)) / 4
        rates = own_rates(np.repeat(np.arange(60), 8), np.arange(480).astype(str), np.full(480, 4), rate)
        assert not isinstance(rates, str)
        results.append(rates.over_time[0])
    assert abs(np.mean(results)) < 3 * np.std(results) / 60**0.5 < 0.005


@pytest.mark.parametrize("rates", ["spread", "one", "few"])
def test_the_quick_way_for_many_prompts_is_the_slow_one(monkeypatch: pytest.MonkeyPatch, rates: str) -> None:
    rng, size = np.random.default_rng(0), 8
    rate = {"spread": rng.random(400), "one": np.ones(400), "few": (rng.random(400) < 0.01).astype(float)}[rates]
    groups = (np.ones(400, dtype=np.int64), np.arange(400), np.full(400, size), rate)
    quick = jensen_gap.own_rates(*groups)
    monkeypatch.setattr(jensen_gap, "_MANY", 1000)
    slow = jensen_gap.own_rates(*groups)
    assert isinstance(quick, OwnRates)
    assert isinstance(slow, OwnRates)
    np.testing.assert_allclose(quick.by_step, slow.by_step, rtol=1e-12, atol=1e-13)


def gap(
    equal: list[int], passing: list[list[int]], members: list[list[int]], num_resamples: int = 200
) -> tuple[float, float]:
    prompts = [f"p{number}" for number in range(len(equal))]
    resampling = Resampling(num_resamples=num_resamples)
    parts = estimate_policy_gap(equal, passing, members, prompts, resampling=resampling)
    return tuple(part.value for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("equal", "passing", "members", "split", "pooled"),
    [
        # Policy 1 passes 3 of 4, policy 2 passes 1 of 4; one of four groups is dead.
        ([0, 1, 0, 0], [[1, 0], [2, 0], [0, 1], [0, 0]], [[2, 0], [2, 0], [0, 2], [0, 2]], 0.75**2 + 0.25**2, 0.5),
        # Of one rollout each, unequal coins agree less often than equal ones: the part between policies is negative.
        ([1, 0, 0, 1], [[1, 1], [1, 0], [1, 0], [1, 1]], [[1, 1]] * 4, 0.5, 0.75**2 + 0.25**2),
    ],
)
def test_by_hand_with_a_group_or_a_rollout_of_each_policy(equal, passing, members, split: float, pooled: float) -> None:
    assert gap(equal, passing, members) == pytest.approx((sum(equal) / 4 - split, split - pooled))


def test_both_parts_add_up_to_the_gap_at_the_pooled_rate() -> None:
    rng = np.random.default_rng(0)
    members = rng.integers(1, 4, size=(40, 3))
    passing = rng.binomial(members, [0.2, 0.5, 0.9])
    total, passed = members.sum(axis=1), passing.sum(axis=1)
    equal = ((passed == 0) | (passed == total)).astype(int)
    rate = float(np.mean(passed / total))
    predicted = np.mean(rate**total + (1 - rate) ** total)
    parts = gap(equal.tolist(), passing.tolist(), members.tolist())
    assert sum(parts) == pytest.approx(equal.mean() - predicted)


def test_one_policy_has_no_part_between_policies() -> None:
    assert gap([1, 0, 0], [[2], [1], [1]], [[2], [2], [2]])[1] == pytest.approx(0.0)

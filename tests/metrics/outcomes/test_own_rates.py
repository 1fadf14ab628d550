from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.metrics.outcomes import own_rates as own_rates_module
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.outcomes.own_rates import OwnRates, estimate_policy_gap, own_rates
from gradscope.metrics.uncertainty.intervals import Resampling

Group = tuple[int, str, int, float]  # step, prompt, size, rate


def of_groups(groups: list[Group]) -> OwnRates | str:
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
    rates = of_groups(groups)
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
    rates = of_groups(groups)
    assert not isinstance(rates, str)
    assert rates.num_blocks == 3  # of two, two and three steps
    blocks = [[g for g in groups if g[0] in steps] for steps in ((1, 2), (3, 4), (5, 6, 7))]
    expected = sum(len(block) * by_choices(block, 3) for block in blocks) / len(groups)
    assert rates.by_step[0] == pytest.approx(expected)
    assert rates.pooled[0] == pytest.approx(by_choices(groups, 3))
    assert rates.over_time[0] == pytest.approx((expected - by_choices(groups, 3)) * 13 / 14)


def test_groups_of_unequal_size_each_count_with_their_own() -> None:
    groups: list[Group] = [(1, f"p{i}", 2 + i % 2, 0.1 * i) for i in range(8)]
    rates = of_groups(groups)
    assert not isinstance(rates, str)
    assert rates.by_step[0] == pytest.approx((by_choices(groups, 2) + by_choices(groups, 3)) / 2)


def test_too_few_prompts_are_a_reason() -> None:
    groups: list[Group] = [(1, "a", 4, 0.5), (2, "b", 4, 0.5), (3, "a", 4, 0.5)]
    assert of_groups(groups) == "groups of 4 rollouts need 5 different prompts to tell p^G without bias, the log has 2"


@pytest.mark.parametrize("size", [2, 64, 256])
def test_large_groups_and_many_prompts_lose_no_digits(size: int) -> None:
    groups: list[Group] = [(1, f"p{i}", size, 0.9) for i in range(size + 40)]
    rates = of_groups(groups)
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
    quick = own_rates_module.own_rates(*groups)
    monkeypatch.setattr(own_rates_module, "_MANY", 1000)
    slow = own_rates_module.own_rates(*groups)
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
    ("equal", "passing", "members", "own", "pooled"),
    [
        # Policy 1 passes 3 of 4, policy 2 passes 1 of 4; one of four groups is dead.
        ([0, 1, 0, 0], [[1, 0], [2, 0], [0, 1], [0, 0]], [[2, 0], [2, 0], [0, 2], [0, 2]], 0.75**2 + 0.25**2, 0.5),
        # Of one rollout each, unequal coins agree less often than equal ones: the part between policies is negative.
        ([1, 0, 0, 1], [[1, 1], [1, 0], [1, 0], [1, 1]], [[1, 1]] * 4, 0.5, 0.75**2 + 0.25**2),
    ],
)
def test_by_hand_with_a_group_or_a_rollout_of_each_policy(equal, passing, members, own: float, pooled: float) -> None:
    assert gap(equal, passing, members) == pytest.approx((sum(equal) / 4 - own, own - pooled))


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

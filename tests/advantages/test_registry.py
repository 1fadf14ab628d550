from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.registry import (
    ALL_FORMULATIONS,
    FORMULATIONS,
    compute_advantages,
    compute_step_advantages,
    formulation,
)
from gradscope.errors import UsageError

binary_groups = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)
NAMES = sorted(FORMULATIONS)


@pytest.mark.parametrize(
    ("name", "advantages"),
    [
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        # mean 1/4, variance with ddof 1: (9/16 + 3/16) / 3 = 1/4, std 1/2
        ("grpo", [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("reinforce", [1.0, 0.0, 0.0, 0.0]),
        ("sign", [1.0, -1.0, -1.0, -1.0]),
        ("positive_only", [1.0, 0.0, 0.0, 0.0]),
        ("negative_only", [0.0, -1.0, -1.0, -1.0]),
        ("tasa", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("max_rl", [3.0, -1.0, -1.0, -1.0]),
        ("grpo_negative", [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001]),
        # k = 2 of G = 4: a pass is in half of the pairs; a fail is saved in the one of its three pairs with the pass
        ("pass_at_2", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        # the only set of four holds the pass
        ("pass_at_4", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_hand_worked_group(name: str, advantages: list[float]) -> None:
    np.testing.assert_allclose(compute_advantages(name, [1.0, 0.0, 0.0, 0.0]), advantages, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "all_pass", "all_fail"),
    [
        ("dr_grpo", 0.0, 0.0),
        ("grpo", 0.0, 0.0),
        ("rloo", 0.0, 0.0),
        ("max_rl", 0.0, 0.0),
        ("reinforce", 1.0, 0.0),
        ("sign", 1.0, -1.0),
        ("positive_only", 1.0, 0.0),
        ("negative_only", 0.0, -1.0),
        ("tasa", 0.25, -0.25),
        ("grpo_negative", 0.0, -1.0),
        ("pass_at_2", 0.5, 0.0),
        ("pass_at_4", 1.0, 0.0),
    ],
)
def test_what_a_degenerate_group_feeds_to_the_optimizer(name: str, all_pass: float, all_fail: float) -> None:
    assert compute_advantages(name, np.ones(4)).tolist() == [all_pass] * 4
    assert compute_advantages(name, np.zeros(4)).tolist() == [all_fail] * 4


@settings(deadline=None)
@given(st.sampled_from(NAMES), binary_groups)
def test_claimed_sums_and_order_hold(name: str, rewards: list[float]) -> None:
    rewards = (rewards * 4)[: max(len(rewards), formulation(name).min_group_size)]
    advantages = compute_advantages(name, rewards)
    assert advantages.shape == (len(rewards),)
    if formulation(name).zero_sum:
        assert abs(advantages.sum()) < 1e-9
    mixed = 0 < sum(rewards) < len(rewards)
    if mixed:
        passes, fails = advantages[np.equal(rewards, 1.0)], advantages[np.equal(rewards, 0.0)]
        # where every set of k holds a success, pass@k has nothing to prefer
        assert passes.min() >= fails.max() if name.startswith("pass_at") else passes.min() > fails.max()


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.lists(binary_groups.map(lambda group: (group * 4)[:4]), min_size=1, max_size=5))
def test_groups_at_once_equal_one_by_one(name: str, groups: list[list[float]]) -> None:
    together = compute_advantages(name, groups)
    np.testing.assert_array_equal(together, [compute_advantages(name, group) for group in groups])


@pytest.mark.parametrize("name", [name for name, entry in ALL_FORMULATIONS.items() if entry.function is not None])
@pytest.mark.parametrize("size", [4, 9, 33])
def test_groups_of_one_size_are_an_array(name: str, size: int) -> None:
    draw = np.random.default_rng(size)
    binary = formulation(name).needs_binary
    rewards = draw.integers(0, 2, (6, size)).astype(np.float64) if binary else draw.normal(size=(6, size))
    np.testing.assert_array_equal(compute_step_advantages(name, list(rewards)), compute_advantages(name, rewards))


@pytest.mark.parametrize("name", NAMES)
def test_each_group_has_its_own_size(name: str) -> None:
    groups = [[1.0, 0.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0, 1.0, 1.0, 1.0], [0.0] * 7]
    for found, group in zip(compute_step_advantages(name, groups), groups, strict=True):
        np.testing.assert_array_equal(found, compute_advantages(name, group))


def test_groups_of_a_step_are_refused_as_groups_are() -> None:
    with pytest.raises(UsageError, match="rloo needs groups of at least 2, this one has 1"):
        compute_step_advantages("rloo", [[1.0, 0.0], [1.0]])
    with pytest.raises(UsageError, match="shrinkage needs groups of at least 2, this one has 1"):
        compute_step_advantages("shrinkage", [[1.0, 0.0], [1.0]])
    with pytest.raises(ValueError, match="advantages need at least one reward"):
        compute_step_advantages("grpo", [[1.0, 0.0], []])


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.floats(-5, 5))
def test_baseline_removes_a_constant(rewards: list[float], constant: float) -> None:
    shifted = [reward + constant for reward in rewards]
    np.testing.assert_allclose(compute_advantages("rloo", shifted), compute_advantages("rloo", rewards), atol=1e-7)


def test_rloo_is_the_leave_one_out_baseline() -> None:
    rewards = np.array([0.2, 0.9, 0.4])
    expected = [reward - np.delete(rewards, i).mean() for i, reward in enumerate(rewards)]
    np.testing.assert_allclose(compute_advantages("rloo", rewards), expected)


def test_equal_fractional_rewards_are_exactly_zero() -> None:
    for name in ("grpo", "dr_grpo", "rloo", "max_rl"):
        assert not compute_advantages(name, [0.1] * 3).any()


def test_grpo_is_what_trl_logs_in_float32() -> None:
    rewards = np.random.default_rng(0).choice([0.0, 0.1, 1.0, 1.1], size=(50, 8)).astype(np.float32)
    mean = rewards.mean(axis=1, keepdims=True, dtype=np.float32)
    expected = (rewards - mean) / (rewards.std(axis=1, ddof=1, keepdims=True) + np.float32(1e-4))
    np.testing.assert_allclose(compute_advantages("grpo", rewards), expected, atol=2e-6)


def test_group_of_one_has_no_grpo_advantage() -> None:
    assert compute_advantages("grpo", [1.0]).tolist() == [0.0]


@pytest.mark.parametrize("name", [name for name in NAMES if FORMULATIONS[name].needs_binary])
def test_rewards_that_are_not_binary_are_refused(name: str) -> None:
    why = "it is defined for rewards of 0 and 1, and there is a reward of 0.5"
    with pytest.raises(UsageError, match=f"no '{name}' advantage: {why}"):
        compute_advantages(name, [0.5, 1.0, 1.0, 1.0])
    assert formulation(name).why_not([0.0, 1.0, 0.0, 0.0]) is None


def test_leave_one_out_needs_two() -> None:
    with pytest.raises(UsageError, match="rloo needs groups of at least 2, this one has 1"):
        compute_advantages("rloo", [1.0])


@pytest.mark.parametrize("rewards", [[np.nan, 1.0], [np.inf, 1.0], [], 1.0])
def test_missing_rewards_are_a_callers_bug(rewards: object) -> None:
    with pytest.raises(ValueError, match="advantages need at least one reward, and all of them finite"):
        compute_advantages("grpo", rewards)


def test_unknown_formulation_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="There is no advantage formulation 'drgrpo'") as caught:
        formulation("drgrpo")
    assert "'dr_grpo'" in caught.value.hint
    with pytest.raises(UsageError, match="There is no advantage formulation 'xyz'") as caught:
        formulation("xyz")
    assert caught.value.hint.startswith("There are: grpo, dr_grpo")


def test_every_formulation_says_where_it_is_from() -> None:
    assert all(entry.name == name and entry.formula and entry.source for name, entry in ALL_FORMULATIONS.items())
    assert not any("2606.29238" in entry.source for entry in ALL_FORMULATIONS.values())


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("num_pass", range(7))
def test_pass_weights_are_those_of_all_sets_of_k(k: int, num_pass: int) -> None:
    """Each rollout's mean over all sets of k of whether it is in the set and the set has a success."""
    rewards = np.array([1.0] * num_pass + [0.0] * (6 - num_pass))
    sets = list(itertools.combinations(range(6), k))
    expected = [np.mean([i in chosen and rewards[list(chosen)].max() == 1 for chosen in sets]) for i in range(6)]
    np.testing.assert_allclose(compute_advantages(f"pass_at_{k}", rewards), expected, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name, entry in ALL_FORMULATIONS.items() if entry.scope in {"run", "token", "gram"}]
)
def test_what_rewards_alone_do_not_decide_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"These rewards have no '{name}' advantage: it (depends on|has one|weighs rewards by)"
    ):
        compute_advantages(name, [1.0, 0.0])


@pytest.mark.parametrize("name", ["batch_mean", "shrinkage"])
def test_one_group_is_no_step(name: str) -> None:
    with pytest.raises(UsageError, match="it is relative to all groups of a step, and this is one group"):
        compute_advantages(name, [1.0, 0.0])
    assert compute_advantages(name, [[1.0, 0.0]]).shape == (1, 2)


def test_batch_mean_by_hand() -> None:
    advantages = compute_advantages("batch_mean", [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(advantages, [[1 / 3] * 3, [-2 / 3, -2 / 3, 1 / 3]])
    assert abs(advantages.sum()) < 1e-12


def test_shrinkage_by_hand() -> None:
    # Others of group 1: means 1/2 and 1, sampling variances 1/4 and 0: v = 1/8, s = 1/16, l = 2/3 * 2/3 = 4/9.
    first = compute_advantages("shrinkage", [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])[0]
    target = 0.75 * 4 / 9
    np.testing.assert_allclose(first, [1.0 - target, 0.0 - (5 / 9 * 1.0 + target)])


def test_ragged_steps_by_hand() -> None:
    groups = [[1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0]]
    # five of eight rollouts pass
    assert [found.tolist() for found in compute_step_advantages("batch_mean", groups)] == [
        [3 / 8, -5 / 8],
        [3 / 8, 3 / 8, -5 / 8, -5 / 8],
        [3 / 8, 3 / 8],
    ]
    # Others of group 1: means 1/2 and 1, sampling variances (1/3) / 4 and 0: v = 1/24, s = 1/16, l = 2/3 * 2/5 = 4/15.
    first = compute_step_advantages("shrinkage", groups)[0]
    np.testing.assert_allclose(first, [1.0 - 0.75 * 4 / 15, -(11 / 15 + 0.75 * 4 / 15)])


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5), st.floats(0.1, 10))
def test_shrinkage_scales_and_its_baseline_does_not_see_its_own_reward(groups: list[list[float]], scale: float) -> None:
    rewards = np.array(groups)
    advantages = compute_advantages("shrinkage", rewards)
    np.testing.assert_allclose(compute_advantages("shrinkage", scale * rewards), scale * advantages, atol=1e-6)
    changed = rewards.copy()
    changed[0, 0] += 1.0
    assert compute_advantages("shrinkage", changed)[0, 0] == pytest.approx(advantages[0, 0] + 1.0, abs=1e-9)


def test_shrinkage_of_one_group_or_of_groups_without_noise_is_rloo() -> None:
    steps = ([[1.0, 0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0] * 3, [0.1] * 3])
    for step in steps:
        expected = [compute_advantages("rloo", group) for group in step]
        np.testing.assert_allclose(compute_advantages("shrinkage", step), expected, atol=1e-15)

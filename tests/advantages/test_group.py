from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.group import krpo, leave_one_out_weights, ngrpo, pass_weights
from gradscope.advantages.registry import compute_advantages
from gradscope.errors import UsageError


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


def test_leave_one_out_needs_two() -> None:
    with pytest.raises(UsageError, match="rloo needs groups of at least 2, this one has 1"):
        compute_advantages("rloo", [1.0])


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("num_pass", range(7))
def test_pass_weights_are_those_of_all_sets_of_k(k: int, num_pass: int) -> None:
    """Each rollout's mean over all sets of k of whether it is in the set and the set has a success."""
    rewards = np.array([1.0] * num_pass + [0.0] * (6 - num_pass))
    sets = list(itertools.combinations(range(6), k))
    expected = [6 * np.mean([i in chosen and rewards[list(chosen)].max() == 1 for chosen in sets]) for i in range(6)]
    np.testing.assert_allclose(compute_advantages(f"pass_at_{k}", rewards), expected, atol=1e-12)


rewards_of_groups = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.3]), min_size=4, max_size=7)


@settings(deadline=None)
@given(rewards_of_groups, st.integers(2, 4))
def test_leave_one_out_weights_are_what_a_rollout_adds_to_the_others(rewards: list[float], k: int) -> None:
    """Over all sets of k - 1 others, one by one."""
    expected = []
    for i, own in enumerate(rewards):
        bests = [max(others) for others in itertools.combinations(rewards[:i] + rewards[i + 1 :], k - 1)]
        expected.append(k * np.mean([max(own, best) - best for best in bests]))
    np.testing.assert_allclose(leave_one_out_weights(k)(np.array(rewards)), expected, atol=1e-12)


@pytest.mark.parametrize(("size", "k"), [(2, 2), (4, 2), (5, 3), (6, 4), (6, 6)])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.7])
def test_the_baseline_leaves_the_gradient_of_pass_at_k_as_it_is(size: int, k: int, p: float) -> None:
    assert expected_update(leave_one_out_weights(k), size, p) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=9))
def test_ngrpo_is_grpo_with_one_more_success(rewards: list[float]) -> None:
    values = [*rewards, 1.0]
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    np.testing.assert_allclose(ngrpo(np.array(rewards)), [(r - mean) / (std + 1e-6) for r in rewards], atol=1e-12)


@pytest.mark.parametrize(("num_pass", "passes", "fails"), [(1, 1.76, -0.50), (0, None, -0.33)])
def test_ngrpo_has_the_figures_of_its_paper(num_pass: int, passes: float | None, fails: float) -> None:
    advantages = ngrpo(np.array([1.0] * num_pass + [0.0] * (8 - num_pass)))
    assert advantages[-1] == pytest.approx(fails, abs=0.005)
    assert passes is None or advantages[0] == pytest.approx(passes, abs=0.005)


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_krpo_is_the_filter_in_its_other_form(rewards: list[float]) -> None:
    """Precisions add up: the prediction's and the reward's."""
    state, variance, expected = 0.0, 1.0, []
    for reward in rewards:
        before, of_reward = 1 / (variance + 1e-5), 1 / 1e-2
        state = (state * before + reward * of_reward) / (before + of_reward)
        variance = 1 / (before + of_reward)
        expected.append((reward - state) / (variance**0.5 + 1e-8))
    np.testing.assert_allclose(krpo(np.array(rewards)), expected, rtol=1e-9, atol=1e-9)


def test_krpo_depends_on_the_order() -> None:
    assert krpo(np.array([1.0, 0.0])).tolist() != krpo(np.array([0.0, 1.0]))[::-1].tolist()


def expected_update(weights: Callable[[np.ndarray], np.ndarray], size: int, p: float) -> float:
    """Mean over all 2^G outcomes of the mean over rollouts of A_i s_i, s_i = d log P(r_i) / dp of a coin."""
    update = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=size):
        rewards = np.array(outcome)
        scores = np.where(rewards == 1.0, 1 / p, -1 / (1 - p))
        chance = np.prod(np.where(rewards == 1.0, p, 1 - p))
        update += float(chance * np.mean(weights(rewards) * scores))
    return update


@pytest.mark.parametrize(("size", "k"), [(2, 1), (2, 2), (4, 2), (5, 3), (6, 2), (6, 4), (6, 6), (9, 4), (10, 8)])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.7])
def test_the_mean_over_rollouts_is_the_gradient_of_pass_at_k(size: int, k: int, p: float) -> None:
    assert expected_update(pass_weights(k), size, p) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


@pytest.mark.parametrize(("name", "scale"), [("reinforce", 1.0), ("rloo", 1.0), ("dr_grpo", 5 / 6), ("sign", 2.0)])
def test_the_others_are_on_the_same_scale(name: str, scale: float) -> None:
    assert expected_update(lambda rewards: compute_advantages(name, rewards), 6, 0.3) == pytest.approx(scale)

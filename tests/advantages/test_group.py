from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.group import pass_weights
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

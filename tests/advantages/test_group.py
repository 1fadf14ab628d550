from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.registry import (
    compute_advantages,
)
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
    expected = [np.mean([i in chosen and rewards[list(chosen)].max() == 1 for chosen in sets]) for i in range(6)]
    np.testing.assert_allclose(compute_advantages(f"pass_at_{k}", rewards), expected, atol=1e-12)

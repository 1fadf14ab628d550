from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.registry import compute_advantages, compute_step_advantages
from gradscope.advantages.step import gdpo


def test_batch_mean_by_hand() -> None:
    advantages = compute_advantages("batch_mean", [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(advantages, [[1 / 3] * 3, [-2 / 3, -2 / 3, 1 / 3]])
    assert abs(advantages.sum()) < 1e-12


steps = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=5).map(np.array), min_size=1, max_size=4
)


@settings(deadline=None)
@given(steps)
def test_batch_std_is_what_trl_computes(groups: list[np.ndarray]) -> None:
    rewards = np.concatenate(groups)
    std = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    expected = np.concatenate([group - group.mean() for group in groups]) / (std + 1e-4)
    found = compute_step_advantages("batch_std", groups)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-9)
    assert all(not np.any(of) for of, group in zip(found, groups, strict=True) if np.ptp(group) == 0)


@settings(deadline=None)
@given(steps)
def test_reinforce_plus_plus_is_the_standard_score_over_the_step(groups: list[np.ndarray]) -> None:
    rewards = np.concatenate(groups)
    variance = statistics.variance(rewards) if len(rewards) > 1 else 0.0
    found = np.concatenate(compute_step_advantages("reinforce_plus_plus", groups))
    np.testing.assert_allclose(found, (rewards - rewards.mean()) / (variance + 1e-8) ** 0.5, atol=1e-9)
    assert np.ptp(rewards) > 0 or not np.any(found)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4))
def test_gdpo_is_what_trl_computes(seed: int, num_functions: int, num_groups: int) -> None:
    """Its lines for ``normalize_then_sum``, on torch's float64."""
    draw = np.random.default_rng(seed)
    grouped = torch.tensor(draw.choice([0.0, 0.1, 1.0], size=(num_groups, 4, num_functions)))
    weights = torch.tensor(draw.normal(size=num_functions))
    scaled = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    summed = (scaled * weights).sum(-1)
    expected = (summed - summed.mean()) / (summed.std() + 1e-4)
    np.testing.assert_allclose(np.stack(gdpo(list(grouped.numpy()), weights.numpy())), expected, atol=1e-7)


def test_gdpo_hears_a_function_whatever_its_scale_and_nothing_of_dead_groups() -> None:
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    dead = np.full((3, 2), 0.1)
    alone, tenth = (gdpo([rewards * [1.0, scale], dead], [1.0, 1.0])[0] for scale in (1.0, 0.1))
    np.testing.assert_allclose(alone, tenth, rtol=2e-3)
    assert alone[0] == pytest.approx(alone[2])
    assert not gdpo([rewards, dead], [1.0, 1.0])[1].any()
    assert [found.tolist() for found in gdpo([dead[:1], dead], [1.0, 1.0])] == [[0.0], [0.0, 0.0, 0.0]]


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
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(0.1, 10),
)
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

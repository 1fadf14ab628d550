from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.advantages.registry import (
    compute_advantages,
    compute_step_advantages,
)


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

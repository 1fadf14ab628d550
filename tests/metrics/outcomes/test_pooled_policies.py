from __future__ import annotations

import numpy as np
import pytest

from gradscope.metrics.outcomes.pooled_policies import estimate_policy_gap
from gradscope.metrics.uncertainty.resampling import Resampling


def gap(
    equal: list[int], passing: list[list[int]], members: list[list[int]], num_resamples: int = 200
) -> tuple[float, float]:
    prompts = [f"p{number}" for number in range(len(equal))]
    resampling = Resampling(num_resamples=num_resamples)
    parts = estimate_policy_gap(equal, passing, members, prompts, resampling=resampling)
    return tuple(part.value for part in parts)  # type: ignore[return-value]


def test_by_hand_with_a_group_of_each_policy() -> None:
    # Policy 1 passes 3 of 4, policy 2 passes 1 of 4; one of four groups is dead.
    equal, passing = [0, 1, 0, 0], [[1, 0], [2, 0], [0, 1], [0, 0]]
    members = [[2, 0], [2, 0], [0, 2], [0, 2]]
    own = (0.75**2 + 0.25**2 + 0.25**2 + 0.75**2) / 2
    pooled = 0.5**2 + 0.5**2
    assert gap(equal, passing, members) == pytest.approx((0.25 - own, own - pooled))


def test_by_hand_with_one_rollout_of_each_policy() -> None:
    # Unequal coins agree less often than equal ones: the part between policies is negative.
    equal, passing, members = [1, 0, 0, 1], [[1, 1], [1, 0], [1, 0], [1, 1]], [[1, 1]] * 4
    own = 1.0 * 0.5 + 0.0 * 0.5
    pooled = 0.75**2 + 0.25**2
    between_prompts, between_policies = gap(equal, passing, members)
    assert (between_prompts, between_policies) == pytest.approx((0.5 - own, own - pooled))
    assert between_policies < 0


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

"""Ranks of dL/dW of one group, averaged over groups and over weights."""

from __future__ import annotations

import numpy as np
import pytest

from gradscope.diagnostics.rank.weights.group_combinations import CombinedGroup, CombinedPart
from gradscope.diagnostics.rank.weights.weight_curve import weight_curve
from gradscope.gradients.step.group_weights import Combinations, GroupWeightRanks


def group_of(group_id: str, *parts: CombinedPart) -> CombinedGroup:
    empty = Combinations(
        group_id=group_id, rollouts=(0,), by_token=False, factors=np.eye(2), has_null=np.array([True, True])
    )
    return CombinedGroup(combinations=empty, parts=parts)


def part(own: int | None, size: int = 4) -> CombinedPart:
    nulls = {} if own is None else {"unweighted": (0,), "shuffled": (0, 1), "signs": (1,)}
    return CombinedPart(advantage="dr_grpo", group_size=size, own=own, nulls=nulls)


def ranks_of(group_id: str, tensor: str, *ranks: float) -> GroupWeightRanks:
    counts = np.array([[rank, rank, rank, 1.0] for rank in ranks])
    return GroupWeightRanks(group_id=group_id, tensor=tensor, shape=(8, 6), counts=counts, gaussian=counts * 2)


def test_weights_are_averaged_within_a_group_and_groups_after_that() -> None:
    groups = [group_of("a", part(0)), group_of("b", part(1)), group_of("c", part(None))]
    ranks = [
        ranks_of("a", "q", 2.0, 9.0),
        ranks_of("a", "k", 4.0, 9.0),
        ranks_of("b", "q", 9.0, 1.0),
        ranks_of("b", "k", 9.0, 2.0),
    ]
    over_all, query, key = weight_curve(7, groups, ranks)
    assert [point.tensor for point in (over_all, query, key)] == [None, "q", "k"]
    assert over_all.effective_rank.value == pytest.approx((3.0 + 1.5) / 2)
    assert (query.effective_rank.value, key.effective_rank.value) == (pytest.approx(1.5), pytest.approx(3.0))
    assert (over_all.num_groups, over_all.num_dead, query.shape) == (3, 1, (8, 6))
    assert query.nulls["gaussian"].ratio.value == pytest.approx(0.5)
    assert query.nulls["shuffled"].effective_rank.value == pytest.approx(min((5.5 + 5.0) / 2, 6.0))


def test_a_weight_without_a_gradient_does_not_count() -> None:
    ranks = [ranks_of("a", "q", np.nan, np.nan), ranks_of("a", "k", 4.0, 4.0)]
    over_all, query, _ = weight_curve(7, [group_of("a", part(0))], ranks)
    assert over_all.effective_rank.value == pytest.approx(4.0)
    assert query.effective_rank.undefined


def test_parts_weigh_alike_or_groups_do() -> None:
    groups = [group_of("a", part(0), part(0)), group_of("b", part(1))]
    ranks = [ranks_of("a", "q", 2.0, 2.0), ranks_of("b", "q", 5.0, 5.0)]
    assert weight_curve(7, groups, ranks)[1].effective_rank.value == pytest.approx(3.0)
    assert weight_curve(7, groups, ranks, by_group=True)[1].effective_rank.value == pytest.approx(3.5)


def test_a_step_of_dead_groups_has_one_point_without_a_rank() -> None:
    (point,) = weight_curve(7, [group_of("a", part(None))], [])
    assert point.effective_rank.undefined
    assert (point.num_groups, point.num_dead) == (1, 1)

"""A rank averaged over the groups of a step, with its nulls beside it.

Shapes: n parts of G rollouts, D draws of a null.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradscope.diagnostics.rank.mean_ranks import MeanRanks, drawn_counts, profile
from gradscope.diagnostics.rank.null_values import TOKEN_ADVANTAGES
from gradscope.diagnostics.rank.rollouts.leave_one_out import rank_given_prompts
from gradscope.diagnostics.rank.rollouts.part_stack import PartStack
from gradscope.estimate import Estimate
from gradscope.metrics.gram.null_models import NULLS
from gradscope.metrics.gram.spectrum import Array, rank_counts
from gradscope.results.ranks.curves import NullRank, RankCurvePoint

_EACH_GROUP_ALIKE = "groups weigh alike here, and leaving out a rollout is for parts that weigh alike"


def curve_point(stack: PartStack, *, step: int, advantage: str, by_group: bool = False) -> RankCurvePoint:
    """The ranks of the live parts, averaged; intervals resample groups.

    Args:
        by_group: Whether each group weighs the same, however many of its parts live.

    Returns:
        The averages; undefined where every part is dead.
    """
    counts = rank_counts(stack.values)
    is_ranked = stack.is_live & np.isfinite(counts[:, 0])
    drawn = stack.null_values(is_ranked) if is_ranked.any() else {}
    mean = MeanRanks(
        counts=counts[is_ranked],
        nulls={name: drawn_counts(values) for name, values in drawn.items()},
        group_ids=[part.group_id for part, is_chosen in zip(stack.parts, is_ranked, strict=True) if is_chosen],
        most=stack.weights.shape[1],
        by_group=by_group,
    )
    means, nulls = mean.means(), mean.null_ranks()
    if not is_ranked.any():
        given_prompts = means["effective_rank"]
    elif by_group:
        given_prompts = Estimate.undefined_because(_EACH_GROUP_ALIKE)
    else:
        given_prompts = rank_given_prompts(stack, advantage, counts[:, 0], is_ranked)
    return RankCurvePoint(
        step=step,
        advantage=advantage,
        group_size=stack.weights.shape[1],
        num_groups=len(stack.parts),
        num_dead=int(np.sum(~stack.is_live)),
        **means,
        summed_energy=mean.mean_within(stack.summed_energy[is_ranked], 0.0, float(stack.weights.shape[1])),
        given_prompts=given_prompts,
        profile=profile(stack.values[is_ranked]),
        nulls={name: _with_profile(nulls.get(name), drawn.get(name)) for name in NULLS} if drawn else {},
    )


def _with_profile(null: NullRank | None, drawn: Array | None) -> NullRank:
    if null is None or drawn is None:
        none = Estimate.undefined_because(TOKEN_ADVANTAGES)
        return NullRank(effective_rank=none, difference=none, ratio=none, two_direction_energy=none)
    return replace(null, profile=profile(drawn))

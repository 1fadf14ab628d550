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
from gradscope.metrics.gram.geometry import CHANNELS
from gradscope.metrics.gram.null_models import NULLS
from gradscope.metrics.gram.spectrum import Array, rank_counts
from gradscope.results.ranks.curves import NullRank, RankCurvePoint

_SHARES = ("shared_energy", "shared_sum")
_NO_CHANNEL = {
    "shared_sum": "the gradients of every group cancel altogether",
    "shared_kept": "the rows of no group share a direction",
    "residual_kept": "the rows of every group lie on the directions that they share",
}
"""Why no part has a number of a channel, though it has a gradient."""
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
        **_channels(mean, stack.channels[is_ranked]),
        given_prompts=given_prompts,
        profile=profile(stack.values[is_ranked]),
        nulls={name: _with_profile(nulls.get(name), drawn.get(name)) for name in NULLS} if drawn else {},
    )


def _channels(mean: MeanRanks, values: Array) -> dict[str, Estimate]:
    """The mean of each number of the shared and the residual channel, over the parts that have it."""
    means = {
        name: mean.mean_within(
            column, 0.0, 1.0 if name in _SHARES else float(mean.most), none=_NO_CHANNEL.get(name, "")
        )
        for name, column in zip(CHANNELS, values.T, strict=True)
    }
    # no interval of a whole number: where nearly all parts have the same one, resampling them says too little
    return {**means, "shared_directions": replace(means["shared_directions"], low=None, high=None)}


def _with_profile(null: NullRank | None, drawn: Array | None) -> NullRank:
    if null is None or drawn is None:
        none = Estimate.undefined_because(TOKEN_ADVANTAGES)
        return NullRank(effective_rank=none, difference=none, ratio=none, two_direction_energy=none)
    return replace(null, profile=profile(drawn))

"""A rank averaged over the groups of a step, with its nulls beside it.

Shapes: n parts of G rollouts, D draws of a null.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.null_values import TOKEN_ADVANTAGES
from gradscope.diagnostics.rank.rollouts.leave_one_out import rank_given_prompts
from gradscope.diagnostics.rank.rollouts.part_stack import PartStack
from gradscope.estimate import Estimate
from gradscope.metrics.gram.null_models import NULLS
from gradscope.metrics.gram.spectrum import Array, effective_ranks
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.results.rank import NullRank, RankCurvePoint

_ALL_DEAD = "every group of this step has zero advantage, so its gradient matrix is zero"


def curve_point(stack: PartStack, *, step: int, advantage: str) -> RankCurvePoint:
    """The ranks of the live parts, averaged; intervals resample groups. Undefined where every part is dead."""
    ranks = effective_ranks(stack.values)
    is_ranked = stack.is_live & np.isfinite(ranks)
    means = _means(stack, ranks, is_ranked) if is_ranked.any() else {}
    dead = Estimate.undefined_because(_ALL_DEAD)
    return RankCurvePoint(
        step=step,
        advantage=advantage,
        group_size=stack.weights.shape[1],
        num_groups=len(stack.parts),
        num_dead=int(np.sum(~stack.is_live)),
        effective_rank=means.get("effective_rank", dead),
        given_prompts=rank_given_prompts(stack, advantage, ranks, is_ranked) if is_ranked.any() else dead,
        stable_rank=means.get("stable_rank", dead),
        participation_ratio=means.get("participation_ratio", dead),
        profile=_profile(stack.values[is_ranked]) if is_ranked.any() else (),
        nulls=_nulls(stack, ranks, is_ranked) if is_ranked.any() else {},
    )


def _means(stack: PartStack, ranks: Array, is_ranked: NDArray[np.bool_]) -> dict[str, Estimate]:
    energy = stack.values[is_ranked] ** 2
    energy = energy / energy[:, :1]
    total = energy.sum(axis=1)
    columns = np.column_stack([ranks[is_ranked], total, total**2 / np.sum(energy**2, axis=1)])
    names = ("effective_rank", "stable_rank", "participation_ratio")
    return dict(zip(names, _mean_ranks(columns, stack, is_ranked), strict=True))


def _nulls(stack: PartStack, ranks: Array, is_ranked: NDArray[np.bool_]) -> Mapping[str, NullRank]:
    """Each null on the same parts; the difference is paired by part."""
    values = stack.null_values(is_ranked)
    # a shuffle may deal zeros to all live rows of a part whose other rows are masked: that draw has no rank
    under = {name: np.nanmean(effective_ranks(drawn), axis=0) for name, drawn in values.items()}
    means = _mean_ranks(np.column_stack(list(under.values())), stack, is_ranked)
    apart = np.column_stack([ranks[is_ranked] - column for column in under.values()])
    differences, span = bootstrap_means(apart, _clusters(stack, is_ranked), share=False), stack.weights.shape[1] - 1.0
    null_ranks = {
        name: NullRank(effective_rank=mean, difference=difference.within(-span, span), profile=_profile(values[name]))
        for name, mean, difference in zip(under, means, differences, strict=True)
    }
    none = Estimate.undefined_because(TOKEN_ADVANTAGES)
    return {name: null_ranks.get(name, NullRank(effective_rank=none, difference=none)) for name in NULLS}


def _mean_ranks(ranks: Array, stack: PartStack, is_ranked: NDArray[np.bool_]) -> list[Estimate]:
    """Means of ranks of G rows, which lie in [1, G], taken as shares of that span: so do their intervals."""
    span = max(stack.weights.shape[1] - 1.0, 1.0)
    means = bootstrap_means(np.clip((ranks - 1.0) / span, 0.0, 1.0), _clusters(stack, is_ranked))
    return [_from_share(mean, span) for mean in means]


def _from_share(mean: Estimate, span: float) -> Estimate:
    """A share of the span from 1 to G as a rank."""
    if mean.value is None:
        return mean
    return Estimate(
        value=1 + span * mean.value,
        low=None if mean.low is None else 1 + span * mean.low,
        high=None if mean.high is None else 1 + span * mean.high,
        num_units=mean.num_units,
    )


def _clusters(stack: PartStack, is_ranked: NDArray[np.bool_]) -> list[str]:
    return [part.group_id for part, is_chosen in zip(stack.parts, is_ranked, strict=True) if is_chosen]


def _profile(values: Array) -> tuple[float, ...]:
    """Mean over matrices of each singular value's share of their sum, largest first."""
    total = values.sum(axis=-1)
    shares = values[total > 0] / total[total > 0][:, None]
    return tuple(float(share) for share in shares.mean(axis=0))

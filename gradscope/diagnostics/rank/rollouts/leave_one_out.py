"""How far the sampling of rollouts alone moves a mean rank: the same prompts, other completions.

Groups are resampled for the uncertainty over prompts. Rollouts are not, because one that is drawn twice is one
direction; each is left out once instead, and the others' advantages are computed anew, as if it had never been there.

Shapes: n parts of G rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import LOGGED, formulation
from gradscope.diagnostics.rank.rollouts.sub_groups import WEIGHED, formulated
from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, center_grams, effective_ranks, singular_values_from_grams
from gradscope.metrics.uncertainty.jackknife import jackknife

if TYPE_CHECKING:
    from gradscope.diagnostics.rank.rollouts.part_stack import PartStack


def rank_given_prompts(stack: PartStack, advantage: str, ranks: Array, is_ranked: NDArray[np.bool_]) -> Estimate:
    """The mean effective rank of the live parts, with the interval of other rollouts of the same prompts.

    Args:
        ranks: Their effective ranks, [n].
        is_ranked: Which of them are live, at least one, [n].

    Returns:
        The mean; undefined where advantages cannot be had without a rollout, or the mean hangs on one.
    """
    size = stack.weights.shape[1]
    reason = _why_not(advantage, size)
    if reason is not None:
        return Estimate.undefined_because(reason)
    # the sum of ranks without one rollout is that of the other parts and of this part made smaller
    own = np.where(is_ranked, ranks, 0.0)
    left_out = np.empty(stack.weights.shape)
    for left in range(size):
        kept = np.delete(np.arange(size), left)
        weights = formulated(advantage, stack.rewards[:, kept], stack.baseline_weights[:, kept])
        ranks_without = effective_ranks(_values(stack, kept, weights))
        lives = np.any(weights != 0, axis=1) & np.isfinite(ranks_without)
        sums = own.sum() - own + np.where(lives, ranks_without, 0.0)
        counts = is_ranked.sum() - is_ranked + lives
        left_out[:, left] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return jackknife(float(own.sum() / is_ranked.sum()), list(left_out[is_ranked]), low=1.0, high=float(size))


def _why_not(advantage: str, size: int) -> str | None:
    if advantage == LOGGED:
        return "the logged advantages are relative to all rollouts of a group; name their formulation"
    entry = formulation(advantage)
    if entry.scope not in {"group", *WEIGHED}:
        return f"{advantage} is relative to more than a group, so that a rollout less changes all groups"
    if size <= entry.min_group_size:
        return f"{advantage} needs groups of at least {entry.min_group_size}, and leaving one out leaves {size - 1}"
    return None


def _values(stack: PartStack, kept: NDArray[np.intp], weights: Array) -> Array:
    """Singular values of the parts without one rollout, [n, G - 1]."""
    grams = weights[:, :, None] * stack.scores[:, kept][:, :, kept] * weights[:, None, :]
    return singular_values_from_grams(center_grams(grams) if stack.centered else grams)

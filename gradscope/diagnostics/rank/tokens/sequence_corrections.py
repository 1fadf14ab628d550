"""What corrections of whole sequences make of a step's gradient, from the Gram matrix of its rollouts alone.

Such a correction multiplies a rollout's row by one number, so that no gradient is computed for it; corrections of
single tokens need sums of token gradients.

Shapes: R rollouts, T tokens of a completion, J groups, V corrections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradscope.diagnostics.rank.tokens.corrections import WeighedUnits, correction_effect
from gradscope.metrics.gram.part_sums import products_without
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler.weight_estimates import usable
from gradscope.results.ranks.token_parts import CorrectionEffect
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


def sequence_corrections(run: Run, gram: StepGram) -> tuple[CorrectionEffect, ...]:
    """Every correction by sequence beside none at all.

    Args:
        gram: A step of the run.

    Returns:
        One a correction; none where the step has no gradient, a rollout has no log-probabilities of its own ids, or the
        trainer's loss looked at those of the sampler: its rows are then weighed already.
    """
    from gradscope.gradients.plan.trainers.registry import objective_of
    from gradscope.gradients.tokens.sums import sequence_factors

    objective, matrix = objective_of(run.settings), gram.policy_gram
    if objective.looks_at_logged or objective.ratio_to_logged or matrix is None or not matrix.sum() > 0:
        return ()
    rollouts = {(one.group_id, one.sample): one for group in run.groups_at(gram.step) for one in group.rollouts}
    gaps = [
        _gap(rollouts[name], own)
        for name, own in zip(zip(gram.group_ids, gram.samples, strict=True), gram.logprobs, strict=True)
    ]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        return ()
    factors = sequence_factors(known)
    summed = usable(factors)
    groups = np.unique(gram.group_ids, return_inverse=True)[1]
    products = _products(matrix, groups == np.arange(groups.max() + 1)[:, None], np.stack(list(summed.values())))
    sums = dict(zip(summed, np.eye(len(summed)), strict=True))
    return tuple(
        correction_effect(
            gram.step, name, WeighedUnits(factors=values, groups=groups, are_sequences=True), products, sums
        )
        for name, values in factors.items()
    )


def _gap(rollout: Rollout, own: Array) -> Array | None:
    """Log-probability by the weights minus that of the sampler, 0 where it is no number or does not count, [T]."""
    if rollout.logprobs is None or len(rollout.logprobs) != len(own):
        return None
    gap = np.asarray(own) - np.asarray(rollout.logprobs, dtype=np.float64)
    counted = np.ones(len(gap), dtype=bool) if rollout.mask is None else np.array(rollout.mask, dtype=bool)
    return np.where(counted & np.isfinite(gap), gap, 0.0)


def _products(matrix: Array, is_of_group: Array, factors: Array) -> Array:
    """Inner products of the corrected gradients, over all groups and without each, [1 + J, V, V]."""
    weights = factors[:, None, :] * is_of_group
    return products_without(np.einsum("vjr,rs,wks->vjwk", weights, matrix, weights, optimize=True))

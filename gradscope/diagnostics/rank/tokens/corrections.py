"""What corrections for the engine that sampled make of the gradient of one step, by token and by sequence.

Shapes: N tokens that count, M units that a correction multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.tokens.weighed import WeighedTokens
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import norm_ratio, products_without, sum_cosine, usable, weight_estimates
from gradscope.metrics.gram.spectrum import Array
from gradscope.results.tokens import CorrectionEffect
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import Rollout

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram


_TOO_LARGE = "a ratio of this step is beyond 1e30"


def correction_effects(step: int, found: WeighedTokens) -> list[CorrectionEffect]:
    """Every correction beside none at all; empty where the sampler's log-probabilities are not known."""
    return [_effect(step, found, name, factors) for name, factors in found.factors.items()]


def _effect(step: int, found: WeighedTokens, name: str, factors: Array) -> CorrectionEffect:
    tokens = found.tokens
    by_sequence = name in found.by_sequence
    first = np.unique(tokens.rollouts, return_index=True)[1] if by_sequence else np.arange(len(factors))
    sums = {label: found.chosen("correction", label) for kind, label in found.labels if kind == "correction"}
    return _correction_effect(
        step,
        str(name),
        _WeighedUnits(factors=factors[first], groups=tokens.groups[first], are_sequences=by_sequence),
        found.products,
        {str(label): one for label, one in sums.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeighedUnits:
    """What a correction multiplies each unit by."""

    factors: Array
    """f, [M]."""
    groups: NDArray[np.int64]
    """The group of each, from 0 to J - 1, [M]."""
    are_sequences: bool
    """Whether units are sequences; else tokens."""


def _correction_effect(
    step: int, name: str, units: _WeighedUnits, products: Array, sums: Mapping[str, Array]
) -> CorrectionEffect:
    """One correction beside none at all."""
    from gradscope.gradients.tokens.sums import UNBIASED, UNCORRECTED

    named: Literal["tokens", "sequences"] = "sequences" if units.are_sequences else "tokens"
    too_large = Estimate.undefined_because(_TOO_LARGE)
    if name not in sums:
        return CorrectionEffect(
            step=step,
            correction=name,
            units=named,
            **dict.fromkeys(("kept", "ess", "chi2", "norm_ratio", "cosine", "unbiased_cosine"), too_large),
        )
    weights, own, none = weight_estimates(units.factors, units.groups), sums[name], sums[UNCORRECTED]
    return CorrectionEffect(
        step=step,
        correction=name,
        units=named,
        kept=weights.kept,
        ess=weights.ess,
        chi2=weights.chi2,
        norm_ratio=norm_ratio(products, own, none),
        cosine=sum_cosine(products, own, none),
        unbiased_cosine=sum_cosine(products, own, sums[UNBIASED]) if UNBIASED in sums else too_large,
    )


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
        _correction_effect(
            gram.step, name, _WeighedUnits(factors=values, groups=groups, are_sequences=True), products, sums
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

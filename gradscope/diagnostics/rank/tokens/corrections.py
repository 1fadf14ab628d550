"""What corrections for the engine that sampled make of the gradient of one step.

Shapes: N tokens that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.tokens.parts_question import WeighedTokens
from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import norm_ratio, sum_cosine
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.sampler.weight_estimates import weight_estimates
from gradscope.results.ranks.token_parts import CorrectionEffect

_TOO_LARGE = "a ratio of this step is beyond 1e30"


def correction_effects(step: int, found: WeighedTokens) -> list[CorrectionEffect]:
    """Every correction beside none at all; empty where the sampler's log-probabilities are not known."""
    return [_effect(step, found, name, factors) for name, factors in found.factors.items()]


def _effect(step: int, found: WeighedTokens, name: str, factors: Array) -> CorrectionEffect:
    tokens = found.tokens
    by_sequence = name in found.by_sequence
    first = np.unique(tokens.rollouts, return_index=True)[1] if by_sequence else np.arange(len(factors))
    sums = {label: found.chosen("correction", label) for kind, label in found.labels if kind == "correction"}
    return correction_effect(
        step,
        str(name),
        WeighedUnits(factors=factors[first], groups=tokens.groups[first], are_sequences=by_sequence),
        found.products,
        {str(label): one for label, one in sums.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedUnits:
    """What a correction multiplies each unit by."""

    factors: Array
    """f, [M]."""
    groups: NDArray[np.int64]
    """The group of each, from 0 to J - 1, [M]."""
    are_sequences: bool
    """Whether units are sequences; else tokens."""


def correction_effect(
    step: int, name: str, units: WeighedUnits, products: Array, sums: Mapping[str, Array]
) -> CorrectionEffect:
    """One correction beside none at all.

    Args:
        units: What it multiplies each unit by.
        products: Inner products of the sums, over all groups and without each, [1 + J, V, V].
        sums: Correction -> how often each sum is in its gradient, [V]; one with a ratio beyond 1e30 is left out.

    Returns:
        The effect.
    """
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

"""What corrections for the engine that sampled make of the gradient of one step.

Shapes: N tokens that count.
"""

from __future__ import annotations

import numpy as np

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
    from gradscope.gradients.tokens.sums.corrections import UNBIASED, UNCORRECTED

    tokens = found.tokens
    by_sequence = name in found.by_sequence
    first = np.unique(tokens.rollouts, return_index=True)[1] if by_sequence else np.arange(len(factors))
    own, none, unbiased = (found.chosen("correction", one) for one in (name, UNCORRECTED, UNBIASED))
    if not own.any():
        too_large = Estimate.undefined_because(_TOO_LARGE)
        return CorrectionEffect(
            step=step,
            correction=name,
            units="sequences" if by_sequence else "tokens",
            **dict.fromkeys(("kept", "ess", "chi2", "norm_ratio", "cosine", "unbiased_cosine"), too_large),
        )
    weights = weight_estimates(factors[first], tokens.groups[first])
    return CorrectionEffect(
        step=step,
        correction=name,
        units="sequences" if by_sequence else "tokens",
        kept=weights.kept,
        ess=weights.ess,
        chi2=weights.chi2,
        norm_ratio=norm_ratio(found.products, own, none),
        cosine=sum_cosine(found.products, own, none),
        unbiased_cosine=sum_cosine(found.products, own, unbiased)
        if unbiased.any()
        else Estimate.undefined_because(_TOO_LARGE),
    )

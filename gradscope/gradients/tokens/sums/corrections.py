"""What trainers multiply a token's gradient by where another engine sampled, each as its source has it by default.

Shapes: N tokens that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gradscope.gradients.plan.sampler import SamplerCorrection
from gradscope.gradients.tokens.sums.counted_tokens import CountedTokens
from gradscope.metrics.gram.spectrum import Array

UNCORRECTED = "none"
"""Where every token keeps its own weight, as if the policy itself had sampled."""
UNBIASED = "sequence_ratio"
"""Whose expectation under the sampler is the gradient on policy."""
_TRL_BOUND = 3.0
"""TRL's ``vllm_importance_sampling_clip_max``."""

CORRECTIONS: Mapping[str, SamplerCorrection | None] = {
    UNCORRECTED: None,
    "token_ratio": SamplerCorrection(mode="token_truncate", low=None, high=None),
    "tis": SamplerCorrection(mode="token_truncate", low=None, high=2.0),
    "icepop": SamplerCorrection(mode="token_mask", low=0.5, high=5.0),
    "token_mask": SamplerCorrection(mode="token_mask", low=None, high=_TRL_BOUND),
    "sequence_truncate": SamplerCorrection(mode="sequence_truncate", low=None, high=_TRL_BOUND),
    "sequence_mask": SamplerCorrection(mode="sequence_mask", low=None, high=_TRL_BOUND),
    UNBIASED: SamplerCorrection(mode="sequence_truncate", low=None, high=None),
}
"""Name -> the correction. ``tis`` has the bound of verl's ``rollout_is_threshold``, ``icepop`` its usual band [0.5, 5],
the others the bound of TRL."""


def corrected(tokens: CountedTokens, sampler: Array, correction: SamplerCorrection | None) -> Array:
    """What a correction multiplies each token's gradient by, infinite beyond floating point.

    Args:
        sampler: The sampler's log-probability of each token, [N].
        correction: None: it stays as it is.

    Returns:
        Factors, one for all tokens of a rollout where ratios are of sequences, [N].
    """
    if correction is None:
        return np.ones(len(sampler))
    factors = np.ones(len(sampler))
    for rollout in np.unique(tokens.rollouts):
        mine = tokens.rollouts == rollout
        own, logged = torch.from_numpy(tokens.logprobs[mine]), torch.from_numpy(sampler[mine])
        factors[mine] = correction.ratio(logged, own, torch.ones_like(own)).numpy()
    return factors


def sequence_factors(gaps: Sequence[Array]) -> dict[str, Array]:
    """What each correction by sequence multiplies some rollouts by, and :data:`UNCORRECTED`, infinite beyond floats.

    Args:
        gaps: The policy's log-probabilities minus the sampler's, 0 where a token does not count, [R][T].

    Returns:
        Correction -> factors, [R].
    """
    by_sequence = {name: one for name, one in CORRECTIONS.items() if one is not None and one.by_sequence}
    own = [torch.from_numpy(np.asarray(gap, dtype=np.float64)) for gap in gaps]
    found = {UNCORRECTED: np.ones(len(own))}
    for name, correction in by_sequence.items():
        ratios = [float(correction.ratio(torch.zeros_like(gap), gap, torch.ones_like(gap))) for gap in own]
        found[name] = np.array(ratios)
    return found

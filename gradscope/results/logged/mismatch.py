"""Sampler and trainer by the log-probabilities that were logged of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchNumbers:
    """How far the trainer's policy is from the one that sampled; w is the ratio of both probabilities of a token."""

    step: int | None
    """The step; None: the whole log."""
    num_tokens: int
    """Sampled tokens that have both log-probabilities."""
    num_sequences: int
    """Sequences that have them."""
    token_ess: Estimate
    """Effective share of the tokens."""
    sequence_ess: Estimate
    """Effective share of the sequences."""
    logprob_gap: Estimate
    """Mean of |log w|."""
    kl_k1: Estimate
    """KL(sampler, trainer) a token, mean of -log w."""
    kl_k3: Estimate
    """KL(sampler, trainer) a token, mean of w - 1 - log w."""
    chi2_token: Estimate
    """Mean of w^2 - 1 over tokens."""
    chi2_sequence: Estimate
    """Mean of w^2 - 1 over sequences."""
    frac_beyond_2: Estimate
    """Share of tokens with w outside [1/2, 2]."""
    frac_beyond_clip: Estimate
    """Share of tokens with w outside [0.8, 1.2]."""
    frac_clipped: Estimate
    """Share of tokens whose gradient PPO's clip at 0.2 takes; undefined without advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMismatch:
    """One token on which sampler and trainer differ."""

    step: int
    """Its step."""
    row: int
    """The row of its rollout within the step, from 0."""
    sequence: int
    """Which of its rollout's sequences it is in, from 0; 0 where the rollout is one."""
    position: int
    """Its place in the completion of its sequence, from 0."""
    sampler: float
    """The sampler's log-probability."""
    trainer: float
    """The trainer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerMismatch:
    """The logged log-probabilities of sampler and trainer beside each other."""

    overall: MismatchNumbers | None = None
    """The whole log."""
    by_step: tuple[MismatchNumbers, ...] = ()
    """Each step that has tokens to compare."""
    worst: tuple[TokenMismatch, ...] = ()
    """The tokens with the largest |log w|."""
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Why rows could not be compared -> how many."""
    is_identical: bool = False
    """Whether no token differs at all, as where the trainer takes over the sampler's values."""

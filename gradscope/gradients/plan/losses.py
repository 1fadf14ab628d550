"""TRL's losses, one declared function each: what a token adds to the reward part of the loss, and how tokens average.

A loss is its formula and nothing else. The weight of grad log pi(token) is the formula's derivative, taken by autograd
on the few numbers of one completion, so it cannot be wrong where the formula is right. A new loss is one function and
one row of :data:`LOSSES`.

Shapes: R completions of an update, T tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParameters:
    """The arguments of the losses, in TRL's names where it has one."""

    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether every token has its own importance ratio, or a completion one: the geometric mean of its tokens'."""
    epsilon_low: float = 0.2
    """The ratio is clipped below 1 - epsilon_low."""
    epsilon_high: float = 0.2
    """The ratio is clipped above 1 + epsilon_high; ``cispo`` holds it below epsilon_high itself."""
    delta: float | None = None
    """A second, two-sided bound on the ratio; None without one."""
    sapo_temperature_pos: float = 1.0
    """Steepness of the soft gate where the advantage is positive."""
    sapo_temperature_neg: float = 1.05
    """The same where it is not."""
    vespo_k_pos: float = 2.0
    """Exponent of the sequence's ratio where the advantage is not negative."""
    vespo_lambda_pos: float = 3.0
    """Decay of the sequence's ratio there."""
    vespo_k_neg: float = 3.0
    """The exponent where it is negative."""
    vespo_lambda_neg: float = 2.0
    """The decay there."""
    max_completion_length: int | None = None
    """The trainer's limit on completions, which ``dr_grpo`` divides by."""
    loss_scale_factor: float | None = None
    """What a sum over tokens is divided by, where another trainer names it; None where none does."""
    advantage_scale: float = 1.0
    """What advantages are multiplied by, where another trainer's loss has such a factor."""
    kl_type: str = "k3"
    """How the KL divergence is estimated, a name of ``KL_TERMS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a loss makes of the tokens of one completion."""

    logprobs: torch.Tensor
    """Log pi of each token, [T]."""
    log_ratio: torch.Tensor
    """The same minus what it was where the batch was sampled, [T]."""
    ratio: torch.Tensor
    """The importance ratio by token, [T], or of the sequence, [1]."""
    advantages: torch.Tensor
    """Advantage of each token, [T]."""
    counted: torch.Tensor
    """1 where a token is in the loss, [T]."""
    low: float
    """The ratio is clipped below it."""
    high: float
    """The ratio is clipped above it."""
    bound: float
    """The second bound on the ratio."""
    correction: torch.Tensor | None
    """Ratio of the trainer to the engine that sampled, already clipped, [T] or [1]; None without a correction."""
    of: LossParameters
    """The loss's arguments."""


Average = Callable[[Sequence[int], LossParameters, int], list[float]]
"""From counted tokens of each completion [R], arguments and the tokens to divide by to a weight per completion [R]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss."""

    term: Callable[[Terms], torch.Tensor]
    """What each token adds to the reward part, [T], before averaging."""
    average: Average
    """The weight of a token of each completion; sums over the update then have the scale of the logged norm."""
    by_micro_batch: bool = False
    """Whether tokens are averaged within micro-batches, so that it matters which completions shared one."""
    by_all_tokens: bool = False
    """Whether it divides by the tokens of the generation batch as TRL counts them, which changed with its version."""
    entropy_alike: bool = False
    """Whether the entropy bonus is averaged as the terms are; else it is a mean over the tokens that it acts on."""
    corrects_itself: bool = False
    """Whether the formula has the correction for the sampler inside; else it multiplies the term."""


def clipped(terms: Terms) -> torch.Tensor:
    """PPO's pessimistic surrogate, with the two-sided bound."""
    worth = terms.ratio.clamp(max=terms.bound) * terms.advantages
    return -torch.min(worth, terms.ratio.clamp(terms.low, terms.high) * terms.advantages)


def truncated_ratio(terms: Terms) -> torch.Tensor:
    """CISPO: log pi weighed by the ratio, held below a bound and out of the derivative."""
    return -terms.ratio.clamp(max=terms.of.epsilon_high).detach() * terms.advantages * terms.logprobs


def soft_gate(terms: Terms) -> torch.Tensor:
    """SAPO: a sigmoid of the ratio in place of the clip."""
    positive, negative = terms.of.sapo_temperature_pos, terms.of.sapo_temperature_neg
    steepness = torch.where(terms.advantages > 0, positive, negative)
    return -torch.sigmoid(steepness * (terms.ratio - 1)) * 4 / steepness * terms.advantages


def gamma_weighted(terms: Terms) -> torch.Tensor:
    """VESPO: log pi weighed by a gamma density of the whole sequence's ratio, out of the derivative."""
    least, of = math.log(1e-8), terms.of
    log_weight = (terms.log_ratio.clamp(-20.0, 20.0) * terms.counted).sum()
    if terms.correction is not None:
        log_weight = log_weight + terms.correction.log().clamp(least, 20.0).sum()
    log_weight = log_weight.clamp(least, 20.0)
    rewarded = terms.advantages >= 0
    power = torch.where(rewarded, of.vespo_k_pos, of.vespo_k_neg)
    decay = torch.where(rewarded, of.vespo_lambda_pos, of.vespo_lambda_neg).clamp(min=1e-4)
    weight = torch.exp(decay + power * log_weight - decay * log_weight.exp())
    return -weight.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).detach() * terms.advantages * terms.logprobs


def completions_alike(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A mean over tokens, then over completions."""
    return [1.0 / (len(counts) * max(count, 1)) for count in counts]


def tokens_alike(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A mean over all tokens of the update."""
    return [1.0 / max(divisor, 1)] * len(counts)


def constant_length(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens divided by the limit on completions, then a mean over completions."""
    if of.max_completion_length is None:
        raise ValueError("dr_grpo divides by max_completion_length, which is not known")
    return [1.0 / (len(counts) * of.max_completion_length)] * len(counts)


def summed_tokens(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens, then a mean over completions."""
    return [1.0 / len(counts)] * len(counts)


LOSSES: Mapping[str, Loss] = {
    "grpo": Loss(term=clipped, average=completions_alike),
    "bnpo": Loss(term=clipped, average=tokens_alike, by_micro_batch=True),
    "dr_grpo": Loss(term=clipped, average=constant_length),
    "dapo": Loss(term=clipped, average=tokens_alike, by_all_tokens=True),
    "luspo": Loss(term=clipped, average=summed_tokens),
    "cispo": Loss(term=truncated_ratio, average=tokens_alike, by_all_tokens=True),
    "sapo": Loss(term=soft_gate, average=completions_alike),
    "vespo": Loss(term=gamma_weighted, average=tokens_alike, by_all_tokens=True, corrects_itself=True),
}
"""TRL's ``loss_type`` -> the loss."""

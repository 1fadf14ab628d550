"""Losses, one declared function each: a token's term in the reward part of the loss, and how tokens average.

A loss is its formula and nothing else. The weight of grad log pi(token) is the formula's derivative, by autograd
on the few numbers of one completion, so it cannot be wrong where the formula is right. A new loss is one function and
one row of :data:`LOSSES`.

Shapes: R completions of an update, T tokens of a completion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import torch
from msgspec import Struct


class LossParameters(Struct, frozen=True, kw_only=True):
    """The arguments of the losses, in TRL's names where it has one."""

    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whether every token has its own importance ratio, or a completion one: the geometric mean of its tokens'."""
    epsilon_low: float = 0.2  # the ratio is clipped below 1 - epsilon_low
    epsilon_high: float = 0.2
    """The ratio is clipped above 1 + epsilon_high; ``cispo`` holds it below epsilon_high itself."""
    delta: float | None = None  # a second, two-sided bound on the ratio; None without one
    sapo_temperature_pos: float = 1.0  # steepness of the soft gate where the advantage is positive
    sapo_temperature_neg: float = 1.05  # the same where it is not
    vespo_k_pos: float = 2.0  # exponent of the sequence's ratio where the advantage is not negative
    vespo_lambda_pos: float = 3.0  # decay of the sequence's ratio there
    vespo_k_neg: float = 3.0  # the exponent where it is negative
    vespo_lambda_neg: float = 2.0  # the decay there
    max_completion_length: int | None = None  # the trainer's limit on completions, which ``dr_grpo`` divides by
    loss_scale_factor: float | None = None
    """The divisor of a sum over tokens where another trainer's settings have one; else None."""
    advantage_scale: float = 1.0  # factor on advantages, where another trainer's loss has one
    kl_type: str = "k3"  # how the KL divergence is estimated, a name of ``KL_TERMS``
    kl_bounds: tuple[float, float] = (math.inf, math.inf)
    """Within what the log-ratio to the reference and the KL term are held; a token beyond has no slope."""


class Terms(Struct, frozen=True, kw_only=True):
    """The arguments of a loss for the tokens of one completion."""

    logprobs: torch.Tensor  # log pi of each token, [T]
    log_ratio: torch.Tensor  # the same minus the log-probability under the sampling weights, [T]
    ratio: torch.Tensor  # the importance ratio by token, [T], or of the sequence, [1]
    advantages: torch.Tensor  # advantage of each token, [T]
    counted: torch.Tensor  # 1 where a token is in the loss, [T]
    low: float  # the ratio is clipped below it
    high: float  # the ratio is clipped above it
    bound: float  # the second bound on the ratio
    correction: torch.Tensor | None
    """Ratio of the trainer to the engine that sampled, already clipped, [T] or [1]; None without a correction."""
    parameters: LossParameters


Average = Callable[[Sequence[int], LossParameters, int], list[float]]
"""From counted tokens of each completion [R], arguments and the tokens to divide by to a weight per completion [R]."""


class Loss(Struct, frozen=True, kw_only=True):
    """One loss."""

    term: Callable[[Terms], torch.Tensor]  # each token's term of the reward part, [T], before averaging
    average: Average
    """The weight of a token of each completion; sums over the update then have the scale of the logged norm."""
    by_micro_batch: bool = False
    """Whether tokens are averaged within micro-batches, so that it matters which completions shared one."""
    by_all_tokens: bool = False
    """Whether it divides by the tokens of the generation batch as TRL counts them, which changed with its version."""
    averages_entropy: bool = False
    """Whether the entropy bonus is averaged as the terms are; else it is a mean over the tokens that it acts on."""
    corrects_itself: bool = False
    """Whether the formula has the correction for the sampler inside; else it multiplies the term."""

    def __repr__(self) -> str:  # a part of the name of interrupted work, the same in every process
        return f"<{self.term.__name__}, {self.average.__name__}>"


def clipped(terms: Terms) -> torch.Tensor:
    """PPO's pessimistic surrogate, with the two-sided bound."""
    surrogate = terms.ratio.clamp(max=terms.bound) * terms.advantages
    return -torch.min(surrogate, terms.ratio.clamp(terms.low, terms.high) * terms.advantages)


def _clipped_product(terms: Terms) -> torch.Tensor:
    """RLOO: PPO's surrogate of the completion, whose ratio is the product of its tokens', in each of its tokens."""
    ratio = (terms.log_ratio * terms.counted).sum().exp()
    return -torch.min(ratio * terms.advantages, ratio.clamp(terms.low, terms.high) * terms.advantages)


def truncated_ratio(terms: Terms) -> torch.Tensor:
    """CISPO: log pi weighed by the ratio, held below a bound and out of the derivative."""
    return -terms.ratio.clamp(max=terms.parameters.epsilon_high).detach() * terms.advantages * terms.logprobs


def soft_gate(terms: Terms) -> torch.Tensor:
    """SAPO: a sigmoid of the ratio instead of the clip."""
    positive, negative = terms.parameters.sapo_temperature_pos, terms.parameters.sapo_temperature_neg
    steepness = torch.where(terms.advantages > 0, positive, negative)
    return -torch.sigmoid(steepness * (terms.ratio - 1)) * 4 / steepness * terms.advantages


def _gamma_weighted(terms: Terms) -> torch.Tensor:
    """VESPO: log pi weighed by a gamma density of the sequence's ratio, out of the derivative."""
    log_floor, parameters = math.log(1e-8), terms.parameters
    log_weight = (terms.log_ratio.clamp(-20.0, 20.0) * terms.counted).sum()
    if terms.correction is not None:
        log_weight = log_weight + terms.correction.log().clamp(log_floor, 20.0).sum()
    log_weight = log_weight.clamp(log_floor, 20.0)
    rewarded = terms.advantages >= 0
    power = torch.where(rewarded, parameters.vespo_k_pos, parameters.vespo_k_neg)
    decay = torch.where(rewarded, parameters.vespo_lambda_pos, parameters.vespo_lambda_neg).clamp(min=1e-4)
    weight = torch.exp(decay + power * log_weight - decay * log_weight.exp())
    return -weight.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).detach() * terms.advantages * terms.logprobs


# Terms of verl, prime-rl and NeMo-RL; :mod:`gradscope.gradients.plan.trainers` says which arguments ask for which.
_LARGEST_LOG_RATIO = 20.0  # log-ratios are held within it before they are exponentiated


def dual_clipped(terms: Terms) -> torch.Tensor:
    """PPO's pessimistic surrogate; where the advantage is negative the ratio counts up to the second bound at most."""
    ratio = _held_ratio_of(terms)
    held = ratio.clamp(terms.low, terms.high)
    worst = torch.where(
        terms.advantages < 0, torch.maximum(ratio, held).clamp(max=terms.bound), torch.minimum(ratio, held)
    )
    return -worst * terms.advantages


def sequence_clipped(terms: Terms) -> torch.Tensor:
    """GSPO by token: the geometric mean of the sequence's ratios, of which each token is given its own part."""
    mean = ((terms.log_ratio * terms.counted).sum() / terms.counted.sum().clamp(min=1.0)).detach()
    ratio = (mean + terms.logprobs - terms.logprobs.detach()).clamp(max=10.0).exp()
    return torch.maximum(-terms.advantages * ratio, -terms.advantages * ratio.clamp(terms.low, terms.high))


def held_ratio(terms: Terms) -> torch.Tensor:
    """CISPO with both bounds: log pi weighed by the clipped ratio, which is out of the derivative."""
    return -_held_ratio_of(terms).clamp(terms.low, terms.high).detach() * terms.advantages * terms.logprobs


def log_likelihood(terms: Terms) -> torch.Tensor:
    """REINFORCE: log pi weighed by the advantage, without a ratio."""
    return -terms.advantages * terms.logprobs


def within_one_bound(terms: Terms) -> torch.Tensor:
    """The ratio, without tokens whose probability moved too far the way that their advantage pushes it."""
    change = _probability_change(terms)
    is_masked = torch.where(terms.advantages > 0, change > terms.high - 1, change < terms.low - 1)
    return _masked_ratio(terms, is_masked)


def within_both_bounds(terms: Terms) -> torch.Tensor:
    """The ratio, without tokens whose probability moved too far either way."""
    change = _probability_change(terms)
    return _masked_ratio(terms, (change > terms.high - 1) | (change < terms.low - 1))


def _probability_change(terms: Terms) -> torch.Tensor:
    """How much likelier a token became since it was sampled."""
    return (terms.logprobs.exp() - (terms.logprobs - terms.log_ratio).exp()).detach()


def _masked_ratio(terms: Terms, is_masked: torch.Tensor) -> torch.Tensor:
    surrogate = terms.parameters.advantage_scale * terms.advantages * terms.log_ratio.exp()
    return -surrogate.masked_fill(is_masked, 0.0)


def _held_ratio_of(terms: Terms) -> torch.Tensor:
    return terms.log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


def mean_per_completion(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A mean over tokens, then over completions."""
    return [1.0 / (len(counts) * max(count, 1)) for count in counts]


def mean_per_token(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A mean over all tokens of the update."""
    return [1.0 / max(divisor, 1)] * len(counts)


def _constant_length(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens divided by the limit on completions, then a mean over completions."""
    if parameters.max_completion_length is None:
        raise ValueError("dr_grpo divides by max_completion_length, which is not known")
    return [1.0 / (len(counts) * parameters.max_completion_length)] * len(counts)


def summed_tokens(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens, then a mean over completions."""
    return [1.0 / len(counts)] * len(counts)


def summed(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A sum over all tokens."""
    return [1.0] * len(counts)


def by_factor(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens divided by a constant, then a mean over completions."""
    if parameters.loss_scale_factor is None:
        raise ValueError("the constant that sums over tokens are divided by is not known")
    return [1.0 / (len(counts) * parameters.loss_scale_factor)] * len(counts)


def without_empty(average: Average) -> Average:
    """The same over the completions that have a token in the loss."""

    def counted(counts: Sequence[int], parameters: LossParameters, divisor: int) -> list[float]:
        weights = iter(average([count for count in counts if count], parameters, divisor))
        return [next(weights) if count else 0.0 for count in counts]

    counted.__name__ = f"{average.__name__}_of_counted"
    return counted


LOSSES: Mapping[str, Loss] = {
    "grpo": Loss(term=clipped, average=mean_per_completion),
    "bnpo": Loss(term=clipped, average=mean_per_token, by_micro_batch=True),
    "dr_grpo": Loss(term=clipped, average=_constant_length),
    "dapo": Loss(term=clipped, average=mean_per_token, by_all_tokens=True),
    "luspo": Loss(term=clipped, average=summed_tokens),
    "cispo": Loss(term=truncated_ratio, average=mean_per_token, by_all_tokens=True),
    "sapo": Loss(term=soft_gate, average=mean_per_completion),
    "vespo": Loss(term=_gamma_weighted, average=mean_per_token, by_all_tokens=True, corrects_itself=True),
}
"""TRL's ``loss_type`` -> the loss."""
RLOO = Loss(term=_clipped_product, average=mean_per_completion)  # of TRL's RLOOTrainer, since 0.22


Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
"""Whether tokens or completions are weighed, and whether a ratio out of bounds is cut or drops them."""


class SamplerCorrection(Struct, frozen=True, kw_only=True):
    """Ratios of trainer to sampler, in TRL's ``vllm_importance_sampling_*``."""

    mode: Mode = "sequence_mask"  # the unit that is weighed, and the treatment of ratios out of bounds
    low: float | None = None  # the least ratio; None without one
    high: float | None = 3.0  # the largest ratio; None without one
    geometric: bool = False
    """Whether the ratio of a sequence is the geometric mean of its tokens' and not their product."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SamplerCorrection | None:
        """The correction of a trainer's arguments; None where the loss has none.

        Raises:
            ValueError: The mode is none of TRL's.
        """
        if not values.get("use_vllm") or values.get("vllm_importance_sampling_correction", True) is False:
            return None
        mode = values.get("vllm_importance_sampling_mode") or "sequence_mask"
        if mode not in get_args(Mode):
            raise ValueError(f"vllm_importance_sampling_mode {mode!r} is none of {', '.join(get_args(Mode))}")
        capped = values.get("vllm_importance_sampling_cap")
        high = capped if capped is not None else values.get("vllm_importance_sampling_clip_max", 3.0)
        return cls(mode=cast(Mode, mode), low=values.get("vllm_importance_sampling_clip_min"), high=high)

    @property
    def by_sequence(self) -> bool:
        """Whether a sequence has one ratio for all tokens."""
        return self.mode.startswith("sequence")

    def ratio(self, sampler: torch.Tensor, old: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """The factor on the reward part, a ratio by token, [T], or one, [1].

        Args:
            sampler: The sampling engine's log-probabilities, [T]; a token without a number counts as on policy.
            old: Those of the weights that sampled, by the trainer, [T].
            counted: 1 where a token is in the loss, [T].
        """
        gap = ((old - sampler) * counted).nan_to_num(nan=0.0)
        sequence_gap = gap.sum().unsqueeze(0) / (counted.sum().clamp(min=1) if self.geometric else 1)
        ratio = (sequence_gap if self.by_sequence else gap).exp()
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


# Estimators of the KL divergence to a reference, one declared function each, from the log-probabilities of both.
#
# Schulman, Approximating KL divergence (2020), calls the first three k1, k2 and k3; trainers have names of their own.
KlTerm = Callable[[torch.Tensor], torch.Tensor]
"""From log reference - log pi of each token, [T], to the term of each, [T]."""

KL_TERMS: Mapping[str, KlTerm] = {
    "k1": torch.neg,
    "k2": lambda gap: gap.square() / 2,
    "k3": lambda gap: gap.exp() - gap - 1,
    "square": torch.square,
    "abs": torch.abs,
}
"""Our name -> the estimator."""


_NO_CLIP = (-float("inf"), float("inf"), float("inf"))


class Completion(Struct, frozen=True, kw_only=True):
    """The inputs of the loss for one completion, other than its log-probabilities."""

    counted: torch.Tensor  # 1 where a token is in the loss, [T]
    old: torch.Tensor | None = None
    """Log-probabilities under the weights that sampled the batch, [T]; None where these are the current weights."""
    sampler: torch.Tensor | None = None
    """Log-probabilities of the engine that sampled, [T], where the loss is corrected for it; NaN where not known."""
    reference: torch.Tensor | None = None  # log-probabilities under the reference policy, [T]; None without a KL term

    def to(self, like: torch.Tensor) -> Completion:
        """The same in the dtype and on the device of another tensor."""
        old, sampler, reference = (
            None if values is None else sent(values, like) for values in (self.old, self.sampler, self.reference)
        )
        return Completion(counted=sent(self.counted, like), old=old, sampler=sampler, reference=reference)


def reward_slope(
    loss: Loss,
    parameters: LossParameters,
    completion: Completion,
    logprobs: torch.Tensor,
    weights: torch.Tensor,
    advantages: torch.Tensor | None,
    *,
    correction: SamplerCorrection | None = None,
    off_policy_threshold: float | None = None,
) -> torch.Tensor:
    """Derivative by log pi of the averaged reward part, [T]: the weights of grad log pi.

    Args:
        weights: Factor on each token's term, [T].
        advantages: Advantage of each token, [T]; None: that of a score vector, 1 and without a clip of the ratio.
        correction: How the loss is corrected for the engine that sampled; None: it is not.
        off_policy_threshold: Completions of negative advantage further off policy than this leave the reward part.
    """
    factor = None
    if correction is not None:
        assert completion.sampler is not None, "a corrected loss has the sampler's log-probabilities"
        factor = correction.ratio(completion.sampler, _old(completion, logprobs), completion.counted)
    mask = torch.ones_like(weights)
    if advantages is None:
        advantages, (low, high, bound) = torch.ones_like(logprobs), _NO_CLIP
    else:
        low, high = 1 - parameters.epsilon_low, 1 + parameters.epsilon_high
        bound = float("inf") if parameters.delta is None else parameters.delta
        if off_policy_threshold is not None:
            mask = _mask(completion, logprobs, advantages, off_policy_threshold)

    def part(leaf: torch.Tensor) -> torch.Tensor:
        log_ratio = leaf - _old(completion, leaf)
        terms = Terms(
            logprobs=leaf,
            log_ratio=log_ratio,
            ratio=_ratio(log_ratio, completion.counted, parameters),
            advantages=advantages,
            counted=completion.counted,
            low=low,
            high=high,
            bound=bound,
            correction=factor,
            parameters=parameters,
        )
        term = loss.term(terms)
        return term if factor is None or loss.corrects_itself else term * factor

    return _derivative(lambda leaf: (weights * mask * part(leaf)).sum(), logprobs)


def kl_slope(
    parameters: LossParameters,
    completion: Completion,
    logprobs: torch.Tensor,
    weights: torch.Tensor,
    *,
    corrected: bool,
) -> torch.Tensor:
    """Derivative by log pi of the averaged KL term, whose estimator ``parameters`` name, [T].

    ``weights`` are the factors on each token's term, beta included. Where it is ``corrected`` it is multiplied
    by the importance ratio too; that of a sequence spreads over its tokens.
    """
    reference = completion.reference
    assert reference is not None, "a plan with kl rows has reference log-probabilities"

    def part(leaf: torch.Tensor) -> torch.Tensor:
        (ratio_bound, term_bound), gap = parameters.kl_bounds, reference - leaf
        held = gap.clamp(-ratio_bound, ratio_bound)
        term = KL_TERMS[parameters.kl_type](held)
        if corrected:
            ratio = _ratio(leaf - _old(completion, leaf), completion.counted, parameters)
            term = term * torch.where(held == gap, ratio, ratio.detach())
        return term.clamp(-term_bound, term_bound)

    return _derivative(lambda leaf: (weights * part(leaf)).sum(), logprobs)


def sent(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype and on the device of another; itself where nothing changes.

    A copy to a GPU is queued behind its current work, and the program continues. A copy from it makes the program wait:
    nothing else would keep it from being read too early.
    """
    return tensor.to(like, non_blocking=tensor.device.type == "cpu")


def factors_out(loss: Loss, parameters: LossParameters) -> bool:
    """Whether, while a batch is used once, the weights are those of a score vector times minus the advantage."""
    unit = torch.ones(2, dtype=torch.float64)
    completion, logprobs = Completion(counted=unit), torch.tensor([-1.0, -2.0], dtype=torch.float64)
    score = reward_slope(loss, parameters, completion, logprobs, unit, None)
    slopes = [(sign, reward_slope(loss, parameters, completion, logprobs, unit, sign * unit)) for sign in (1.0, -1.0)]
    return all(torch.allclose(slope, sign * score, rtol=1e-12) for sign, slope in slopes)


def _derivative(value: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        (slope,) = torch.autograd.grad(value(leaf), leaf)
    return slope


def _old(completion: Completion, logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.detach() if completion.old is None else completion.old


def _ratio(log_ratio: torch.Tensor, counted: torch.Tensor, parameters: LossParameters) -> torch.Tensor:
    """The importance ratio by token, [T], or the geometric mean of a sequence, [1]."""
    if parameters.importance_sampling_level == "token":
        return log_ratio.exp()
    return ((log_ratio * counted).sum() / counted.sum().clamp(min=1.0)).exp().unsqueeze(0)


def _mask(completion: Completion, logprobs: torch.Tensor, advantages: torch.Tensor, threshold: float) -> torch.Tensor:
    """1 where the advantage is not negative or the completion is not further off than the threshold, [T]."""
    sampled = _old(completion, logprobs) if completion.sampler is None else completion.sampler
    gap = (sampled - logprobs.detach()).nan_to_num(nan=0.0) * completion.counted
    close = gap.sum() / completion.counted.sum().clamp(min=1.0) <= threshold
    return ((advantages >= 0) | close).to(logprobs)

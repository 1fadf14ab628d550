"""The weight of each token's grad log pi in one completion: derivatives of the declared loss on its few numbers.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradscope.gradients.plan.kl_terms import KL_TERMS
from gradscope.gradients.plan.losses import Loss, LossParameters, Terms
from gradscope.gradients.plan.sampler import SamplerCorrection

_NO_CLIP = (-float("inf"), float("inf"), float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the loss knows of one completion beside its log-probabilities."""

    counted: torch.Tensor
    """1 where a token is in the loss, [T]."""
    old: torch.Tensor | None = None
    """Log-probabilities under the weights that sampled the batch, [T]; None where these are the weights at hand."""
    sampler: torch.Tensor | None = None
    """Log-probabilities of the engine that sampled, [T], where the loss is corrected for it; NaN where not known."""
    reference: torch.Tensor | None = None
    """Log-probabilities under the reference policy, [T]; None without a KL term."""

    def to(self, like: torch.Tensor) -> Completion:
        """The same in the dtype and on the device of another tensor."""
        old, sampler, reference = (
            None if each is None else sent(each, like) for each in (self.old, self.sampler, self.reference)
        )
        return Completion(counted=sent(self.counted, like), old=old, sampler=sampler, reference=reference)


def reward_slope(
    loss: Loss,
    of: LossParameters,
    completion: Completion,
    logprobs: torch.Tensor,
    weights: torch.Tensor,
    advantages: torch.Tensor,
    *,
    correction: SamplerCorrection | None = None,
    off_policy_threshold: float | None = None,
    clip: bool = True,
) -> torch.Tensor:
    """Derivative by log pi of the averaged reward part, [T].

    Args:
        weights: What each token's term is multiplied by, [T].
        advantages: Advantage of each token, [T].
        correction: How the loss is corrected for the engine that sampled; None: it is not.
        off_policy_threshold: Completions of negative advantage further off than this leave the reward part.
        clip: Whether the ratio is clipped; a score vector, which knows no advantage, has no clip.

    Returns:
        The weights of grad log pi.
    """
    factor = None
    if correction is not None:
        assert completion.sampler is not None, "a corrected loss has the sampler's log-probabilities"
        factor = correction.ratio(completion.sampler, _old(completion, logprobs), completion.counted)
    low, high, bound = _NO_CLIP
    if clip:
        low, high = 1 - of.epsilon_low, 1 + of.epsilon_high
        bound = float("inf") if of.delta is None else of.delta
    kept = torch.ones_like(weights)
    if off_policy_threshold is not None and clip:
        kept = _kept(completion, logprobs, advantages, off_policy_threshold)

    def part(leaf: torch.Tensor) -> torch.Tensor:
        log_ratio = leaf - _old(completion, leaf)
        terms = Terms(
            logprobs=leaf,
            log_ratio=log_ratio,
            ratio=_ratio(log_ratio, completion.counted, of),
            advantages=advantages,
            counted=completion.counted,
            low=low,
            high=high,
            bound=bound,
            correction=factor,
            of=of,
        )
        term = loss.term(terms)
        return term if factor is None or loss.corrects_itself else term * factor

    return _derivative(lambda leaf: (weights * kept * part(leaf)).sum(), logprobs)


def kl_slope(
    of: LossParameters, completion: Completion, logprobs: torch.Tensor, weights: torch.Tensor, *, corrected: bool
) -> torch.Tensor:
    """Derivative by log pi of the averaged KL term, whose estimator ``of`` names, [T].

    Args:
        weights: What each token's term is multiplied by, beta included, [T].
        corrected: Whether the term is multiplied by the importance ratio; that of a sequence spreads over its tokens.

    Returns:
        The weights of grad log pi.
    """
    reference = completion.reference
    assert reference is not None, "a plan with kl rows has reference log-probabilities"

    def part(leaf: torch.Tensor) -> torch.Tensor:
        term = KL_TERMS[of.kl_type](leaf, reference)
        return term * _ratio(leaf - _old(completion, leaf), completion.counted, of) if corrected else term

    return _derivative(lambda leaf: (weights * part(leaf)).sum(), logprobs)


def sent(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype and on the device of another.

    What goes to a GPU is queued there behind the work at hand, and the program goes on. What comes back is waited for:
    nothing else would keep it from being read too early.

    Returns:
        The same numbers; itself where nothing changes.
    """
    return tensor.to(like, non_blocking=tensor.device.type == "cpu")


def factors_out(loss: Loss, of: LossParameters) -> bool:
    """Whether, while a batch is used once, the weights are those of a score vector times minus the advantage."""
    one = torch.ones(2, dtype=torch.float64)
    completion, logprobs = Completion(counted=one), torch.tensor([-1.0, -2.0], dtype=torch.float64)
    score = reward_slope(loss, of, completion, logprobs, one, one, clip=False)
    return all(
        torch.allclose(reward_slope(loss, of, completion, logprobs, one, sign * one), sign * score, rtol=1e-12)
        for sign in (1.0, -1.0)
    )


def _derivative(value: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        (slope,) = torch.autograd.grad(value(leaf), leaf)
    return slope


def _old(completion: Completion, logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.detach() if completion.old is None else completion.old


def _ratio(log_ratio: torch.Tensor, counted: torch.Tensor, of: LossParameters) -> torch.Tensor:
    """The importance ratio by token, [T], or the geometric mean of a sequence, [1]."""
    if of.importance_sampling_level == "token":
        return log_ratio.exp()
    return ((log_ratio * counted).sum() / counted.sum().clamp(min=1.0)).exp().unsqueeze(0)


def _kept(completion: Completion, logprobs: torch.Tensor, advantages: torch.Tensor, threshold: float) -> torch.Tensor:
    """1 where the advantage is not negative or the completion is not further off than the threshold, [T]."""
    sampled = _old(completion, logprobs) if completion.sampler is None else completion.sampler
    gap = (sampled - logprobs.detach()).nan_to_num(nan=0.0) * completion.counted
    close = gap.sum() / completion.counted.sum().clamp(min=1.0) <= threshold
    return ((advantages >= 0) | close).to(logprobs)

"""What the losses of verl, prime-rl and NeMo-RL are made of: terms of a token, and averages of tokens.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.gradients.plan.losses import LossParameters, Terms

_LARGEST = 20.0
"""Log-ratios are held within it before they are exponentiated."""


def dual_clipped(terms: Terms) -> torch.Tensor:
    """PPO's pessimistic surrogate; where the advantage is negative the ratio counts up to the second bound at most."""
    ratio = _ratio(terms)
    clipped = ratio.clamp(terms.low, terms.high)
    worst = torch.where(
        terms.advantages < 0, torch.maximum(ratio, clipped).clamp(max=terms.bound), torch.minimum(ratio, clipped)
    )
    return -worst * terms.advantages


def sequence_clipped(terms: Terms) -> torch.Tensor:
    """GSPO by token: the geometric mean of the sequence's ratios, of which each token is given its own part."""
    mean = ((terms.log_ratio * terms.counted).sum() / terms.counted.sum().clamp(min=1.0)).detach()
    ratio = (mean + terms.logprobs - terms.logprobs.detach()).clamp(max=10.0).exp()
    return torch.maximum(-terms.advantages * ratio, -terms.advantages * ratio.clamp(terms.low, terms.high))


def held_ratio(terms: Terms) -> torch.Tensor:
    """CISPO with both bounds: log pi weighed by the clipped ratio, which is out of the derivative."""
    return -_ratio(terms).clamp(terms.low, terms.high).detach() * terms.advantages * terms.logprobs


def log_likelihood(terms: Terms) -> torch.Tensor:
    """REINFORCE: log pi weighed by the advantage, without a ratio."""
    return -terms.advantages * terms.logprobs


def within_one_bound(terms: Terms) -> torch.Tensor:
    """The ratio, without tokens whose probability moved too far the way that their advantage pushes it."""
    moved = _moved(terms)
    gone = torch.where(terms.advantages > 0, moved > terms.high - 1, moved < terms.low - 1)
    return _kept_ratio(terms, gone)


def within_both_bounds(terms: Terms) -> torch.Tensor:
    """The ratio, without tokens whose probability moved too far either way."""
    moved = _moved(terms)
    return _kept_ratio(terms, (moved > terms.high - 1) | (moved < terms.low - 1))


def summed(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A sum over all tokens."""
    return [1.0] * len(counts)


def by_factor(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A sum over tokens divided by a constant, then a mean over completions."""
    if of.loss_scale_factor is None:
        raise ValueError("the constant that sums over tokens are divided by is not known")
    return [1.0 / (len(counts) * of.loss_scale_factor)] * len(counts)


def counted_completions_alike(counts: Sequence[int], of: LossParameters, divisor: int) -> list[float]:
    """A mean over tokens, then over the completions that have any in the loss."""
    num_counted = sum(count > 0 for count in counts)
    return [1.0 / (max(num_counted, 1) * max(count, 1)) for count in counts]


def _moved(terms: Terms) -> torch.Tensor:
    """How much likelier a token became since it was sampled."""
    return (terms.logprobs.exp() - (terms.logprobs - terms.log_ratio).exp()).detach()


def _kept_ratio(terms: Terms, gone: torch.Tensor) -> torch.Tensor:
    worth = terms.of.advantage_scale * terms.advantages * terms.log_ratio.exp()
    return -worth.masked_fill(gone, 0.0)


def _ratio(terms: Terms) -> torch.Tensor:
    return terms.log_ratio.clamp(-_LARGEST, _LARGEST).exp()

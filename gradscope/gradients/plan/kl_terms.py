"""Estimators of the KL divergence to a reference, one declared function each, from the log-probabilities of both.

Schulman, Approximating KL divergence (2020), calls the first three k1, k2 and k3; trainers have names of their own.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

KlTerm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From log pi and log reference of each token, [T], to the term of each, [T]."""


def log_ratio(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k1: how much likelier the policy has a token."""
    return logprobs - reference


def half_square(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k2: half of its square."""
    return (logprobs - reference).square() / 2


def square(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Its square."""
    return (logprobs - reference).square()


def magnitude(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Its absolute value."""
    return (logprobs - reference).abs()


def excess(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3: exp(d) - d - 1 with d = log reference - log pi."""
    behind = reference - logprobs
    return behind.exp() - behind - 1


def bounded_excess(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3 with d held within 20 and the term within 10, as verl and NeMo-RL have it."""
    behind = (reference - logprobs).clamp(-20.0, 20.0)
    return (behind.exp() - behind - 1).clamp(-10.0, 10.0)


KL_TERMS: Mapping[str, KlTerm] = {
    "k1": log_ratio,
    "k2": half_square,
    "k3": excess,
    "k3 bounded": bounded_excess,
    "square": square,
    "abs": magnitude,
}
"""Name here -> the estimator."""

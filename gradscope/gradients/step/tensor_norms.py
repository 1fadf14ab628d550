"""Norms of the step's gradient, parameter by parameter: which layers a large gradient is in.

One ordinary backward pass over the step's rollouts, as in training; nothing of size rollouts times parameters is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.step.weight_spectra import step_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNorm:
    """One parameter's part of the step's gradient."""

    tensor: str
    """The parameter's name."""
    num_entries: int
    """Numbers in it."""
    norm: float
    """Norm of its gradient; NaN or infinite where that overflowed."""


def measure_tensor_norms(
    prepared: PreparedStep, gradient: Mapping[str, torch.Tensor] | None = None
) -> tuple[TensorNorm, ...]:
    """Norms of the step's gradient as the optimizer saw it: logged advantages, KL part included.

    Args:
        prepared: The step, all of its rollouts with a logged advantage.
        gradient: The gradient, as ``step_gradient`` returns it; None: it is computed.

    Returns:
        One a trainable parameter, in the model's order; their squares add up to the squared norm of the gradient.

    Raises:
        InputError: A rollout has no logged advantage.
    """
    gradient = step_gradient(prepared) if gradient is None else gradient
    return tuple(
        TensorNorm(
            tensor=name,
            num_entries=parameter.numel(),
            norm=float(gradient[name].double().norm()) if name in gradient else 0.0,
        )
        for name, parameter in prepared.policy.trainable.items()
    )

"""A control for comparisons: every update from a gradient of one norm, so that formulations differ in direction alone.

Clipping only shortens, and formulations differ in how long their gradients are: signs give more than differences from
a mean. AdamW forgives a constant factor, not one that changes from step to step.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback


class NormMatch(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Scales each gradient to one norm, up or down, after clipping and before the optimizer's step.

    A gradient that is zero, where every group of the step is dead, has no direction and stays zero. The logged
    ``grad_norm`` is the one before.

    Args:
        norm: The norm of all trained parameters' gradients together.
    """

    def __init__(self, norm: float) -> None:
        self._norm = norm

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: torch.nn.Module, **_: Any) -> None:
        """Scale the model's gradients, which are ready."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if norm > 0:
            for gradient in gradients:
                gradient.mul_(self._norm / norm)

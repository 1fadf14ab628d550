"""What SGD, Adam and Muon, each fresh, would make of one and the same gradient, matrix by matrix.

The optimizers are PyTorch's own, with nothing behind them and without weight decay. Adam's first step has the signs of
the gradient, Muon's its directions with equal singular values. Learning rates of the three are not comparable; so for
what bfloat16 sees each step is given the size of Adam's at the logged learning rate.

Shapes: O outputs, I inputs of a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress

Optimizer = Literal["sgd", "adam", "muon"]
OPTIMIZERS: Mapping[Optimizer, Callable[[nn.Parameter], torch.optim.Optimizer]] = {
    "sgd": lambda parameter: torch.optim.SGD([parameter], lr=1.0),
    "adam": lambda parameter: torch.optim.Adam([parameter], lr=1.0),
    "muon": lambda parameter: torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0),
}
"""Name -> the optimizer of one matrix, at learning rate 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSteps:
    """The first steps of the three optimizers on one matrix."""

    tensor: str
    """The parameter's name."""
    num_entries: int
    """O I."""
    products: Array
    """Inner products of the steps at learning rate 1, in the order of :data:`OPTIMIZERS`, [3, 3]."""
    singular_values: tuple[Array, ...]
    """Of each step, descending, [3][min(O, I)]."""
    num_moved: tuple[int, ...] | None
    """Entries whose bfloat16 rounding each step changes, at the size of Adam's; None without a learning rate, [3]."""


def measure_optimizer_steps(
    trainable: Mapping[str, nn.Parameter],
    gradient: Mapping[str, torch.Tensor],
    learning_rate: float | None,
    progress: ProgressCallback = no_progress,
) -> tuple[MatrixSteps, ...]:
    """The steps on every matrix that the step's gradient reaches.

    Args:
        trainable: The parameters, on one device each.
        gradient: Their gradients, as ``step_gradient`` returns them.
        learning_rate: As logged; None: not known.

    Returns:
        One a two-dimensional trainable parameter with a gradient, in the model's order.
    """
    found = []
    matrices = {
        name: parameter
        for name, parameter in trainable.items()
        if parameter.dim() == 2 and name in gradient and bool(gradient[name].any())
    }
    for done, (name, parameter) in enumerate(matrices.items(), start=1):
        steps = [_step(optimizer, gradient[name]) for optimizer in OPTIMIZERS.values()]
        flat = torch.stack([step.flatten() for step in steps]).double()
        found.append(
            MatrixSteps(
                tensor=name,
                num_entries=parameter.numel(),
                products=np.asarray((flat @ flat.t()).cpu().numpy(), dtype=np.float64),
                singular_values=tuple(torch.linalg.svdvals(step.double()).cpu().numpy() for step in steps),
                num_moved=None if learning_rate is None else _moved(parameter, steps, learning_rate),
            )
        )
        progress(done, len(matrices), "tensors")
    return tuple(found)


def _step(optimizer: Callable[[nn.Parameter], torch.optim.Optimizer], gradient: torch.Tensor) -> torch.Tensor:
    """The first step from nothing, so that no rounding of weights is in it."""
    with torch.enable_grad():
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        optimizer(parameter).step()
    return parameter.detach()


def _moved(parameter: nn.Parameter, steps: list[torch.Tensor], learning_rate: float) -> tuple[int, ...]:
    """Entries that bfloat16 sees move, by each step at the norm of Adam's."""
    size = learning_rate * float(steps[list(OPTIMIZERS).index("adam")].double().norm())
    weights = parameter.detach().double()
    before = weights.to(torch.bfloat16)
    return tuple(
        int((before != (weights + step.double() * (size / step.double().norm())).to(torch.bfloat16)).sum())
        for step in steps
    )

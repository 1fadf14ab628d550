"""Singular values of dL/dW, tensor by tensor: how many directions of each weight matrix a step's update moves.

The sizes of its entries say how much of it is (near) zero.

The gradient of the whole step is added up by ordinary backward passes, as in training; then each two-dimensional
parameter is decomposed alone.

Shapes: R rollouts, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradscope.estimate import Estimate
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.passes import Weigh
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpectrum:
    """The singular values of one parameter's gradient."""

    tensor: str
    shape: tuple[int, int]  # its shape, (O, I)
    singular_values: NDArray[np.float64]  # descending, [min(O, I)]
    entries: Mapping[str, Estimate]  # sparsity of the sizes of its entries, by definition


def measure_weight_spectra(
    prepared: PreparedStep, progress: ProgressCallback = no_progress
) -> tuple[WeightSpectrum, ...]:
    """Spectra of the step's gradient as the optimizer saw it, one a matrix: logged advantages, KL part included.

    Raises:
        InputError: A rollout has no logged advantage.
    """
    trainable, gradient = prepared.policy.trainable, step_gradient(prepared)
    matrices = [name for name, parameter in trainable.items() if parameter.dim() == 2]
    spectra = []
    for done, name in enumerate(matrices, start=1):
        shape = trainable[name].shape
        matrix = gradient.pop(name, torch.zeros(shape, device=prepared.policy.device))
        spectra.append(
            WeightSpectrum(
                tensor=name,
                shape=(shape[0], shape[1]),
                singular_values=torch.linalg.svdvals(matrix.double()).cpu().numpy(),
                entries=row_sparsity(matrix.abs().flatten().double().cpu().numpy()),
            )
        )
        progress(done, len(matrices), "tensors")
    return tuple(spectra)


def step_gradient(prepared: PreparedStep) -> dict[str, torch.Tensor]:
    """The gradient of the step's loss by parameter; a parameter that gets none is absent."""
    plan = prepared.plan
    score_rows = list(plan.index("score").values())

    def attempt(batch_tokens: int) -> dict[str, torch.Tensor]:
        return _added_up(prepared, prepared.batches(score_rows, batch_tokens))

    return prepared.budget.fit([plan.lengths[row] for row in score_rows], attempt)


def _added_up(prepared: PreparedStep, batches: Sequence[PaddedBatch]) -> dict[str, torch.Tensor]:
    """The gradients of some batches together."""
    plan, gradient = prepared.plan, dict[str, torch.Tensor]()

    def add(name: str, grad: torch.Tensor) -> None:
        part = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
        gradient[name] = gradient[name] + part if name in gradient else part.clone()

    def weigh(batch: PaddedBatch) -> Weigh:
        return lambda position, logprobs: plan.gradient(plan.rows[batch.rows[position]].sequence, logprobs)

    for batch in batches:
        prepared.backward(batch, weigh(batch), add)
    return gradient


# Norms of the step's gradient, parameter by parameter: which layers a large gradient is in.
#
# One ordinary backward pass over the step's rollouts, as in training; nothing of size rollouts times parameters is
# held.
@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNorm:
    """One parameter's part of the step's gradient."""

    tensor: str
    num_entries: int  # numbers in it
    norm: float  # norm of its gradient; NaN or infinite where that overflowed


def measure_tensor_norms(
    prepared: PreparedStep, gradient: Mapping[str, torch.Tensor] | None = None
) -> tuple[TensorNorm, ...]:
    """Norms of the step's gradient as the optimizer saw it, one a trainable parameter: their squares add up to its own.

    Args:
        gradient: The gradient, as ``step_gradient`` returns it; None: it is computed.

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


# What SGD, Adam and Muon, each fresh, would make of one and the same gradient, matrix by matrix.
#
# The optimizers are PyTorch's own, with nothing behind them and without weight decay. Adam's first step has the signs
# of the gradient, Muon's its directions with equal singular values. Learning rates of the three are not comparable; so
# for what bfloat16 sees each step is given the size of Adam's at the logged learning rate.
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
    num_entries: int  # O I
    products: Array  # inner products of the steps at learning rate 1, in the order of :data:`OPTIMIZERS`, [3, 3]
    singular_values: tuple[Array, ...]  # of each step, descending, [3][min(O, I)]
    num_moved: tuple[int, ...] | None
    """Entries whose bfloat16 rounding each step changes, at the size of Adam's; None without a learning rate, [3]."""


def measure_optimizer_steps(
    trainable: Mapping[str, nn.Parameter],
    gradient: Mapping[str, torch.Tensor],
    learning_rate: float | None,
    progress: ProgressCallback = no_progress,
) -> tuple[MatrixSteps, ...]:
    """The steps on every matrix that the step's gradient reaches, in the model's order.

    ``gradient`` is as ``step_gradient`` returns it, the learning rate as logged.
    """
    measured = []
    matrices = {
        name: parameter
        for name, parameter in trainable.items()
        if parameter.dim() == 2 and name in gradient and bool(gradient[name].any())
    }
    for done, (name, parameter) in enumerate(matrices.items(), start=1):
        steps = [_step(optimizer, gradient[name]) for optimizer in OPTIMIZERS.values()]
        flat = torch.stack([step.flatten() for step in steps]).double()
        measured.append(
            MatrixSteps(
                tensor=name,
                num_entries=parameter.numel(),
                products=np.asarray((flat @ flat.t()).cpu().numpy(), dtype=np.float64),
                singular_values=tuple(torch.linalg.svdvals(step.double()).cpu().numpy() for step in steps),
                num_moved=None if learning_rate is None else _moved(parameter, steps, learning_rate),
            )
        )
        progress(done, len(matrices), "tensors")
    return tuple(measured)


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

"""Singular values of dL/dW, tensor by tensor: how many directions of each weight matrix a step's update moves.

The sizes of its entries say how much of it is (near) zero.

The gradient of the whole step is added up by ordinary backward passes, as in training; then each two-dimensional
parameter is decomposed alone.

Shapes: R rollouts, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.gradients.model.backward import Weigh, backward
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.progress import ProgressCallback, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpectrum:
    """The singular values of one parameter's gradient."""

    tensor: str
    """The parameter's name."""
    shape: tuple[int, int]
    """Its shape, (O, I)."""
    singular_values: NDArray[np.float64]
    """Descending, [min(O, I)]."""
    entries: Mapping[str, Estimate]
    """Sparsity of the sizes of its entries, by definition."""


def measure_weight_spectra(
    prepared: PreparedStep, progress: ProgressCallback = no_progress
) -> tuple[WeightSpectrum, ...]:
    """Spectra of the step's gradient as the optimizer saw it: logged advantages, KL part included.

    Args:
        prepared: The step, all of its rollouts with a logged advantage.

    Returns:
        One spectrum per two-dimensional trainable parameter, in the model's order.

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
    policy, plan = prepared.policy, prepared.plan
    gradient: dict[str, torch.Tensor] = {}

    def add(name: str, grad: torch.Tensor) -> None:
        part = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
        gradient[name] = gradient[name] + part if name in gradient else part.clone()

    def weigh(batch: PaddedBatch) -> Weigh:
        return lambda position, logprobs: plan.gradient(plan.rows[batch.rows[position]].sequence, logprobs)

    for batch in batches:
        backward(
            policy.model,
            policy.trainable,
            batch,
            plan.objective.temperature,
            weigh(batch),
            add,
            entropies=plan.has_entropies,
        )
    return gradient

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
from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.plan_step import batch_rows, plan_step
from gradscope.gradients.plan.rows import RowPlan
from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.types import RolloutGroup


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
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    *,
    budget: TokenBudget | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[WeightSpectrum, ...]:
    """Spectra of the step's gradient as the optimizer saw it: logged advantages, KL part included.

    Args:
        policy: The weights that the step's update started from.
        groups: The step's rollouts, all with a logged advantage.
        objective: The trainer's loss.
        budget: Most padded tokens of a forward pass; None: a guess that is halved where it does not fit.
        progress: Called as tensors are done.

    Returns:
        One spectrum per two-dimensional trainable parameter, in the model's order.
    """
    tell = progress or no_progress
    gradient = _step_gradient(policy, groups, objective, budget or TokenBudget(first_batch_tokens(policy)))
    matrices = [name for name, parameter in policy.trainable.items() if parameter.dim() == 2]
    spectra = []
    for done, name in enumerate(matrices, start=1):
        shape = policy.trainable[name].shape
        matrix = gradient.pop(name, torch.zeros(shape))
        spectra.append(
            WeightSpectrum(
                tensor=name,
                shape=(shape[0], shape[1]),
                singular_values=torch.linalg.svdvals(matrix.double()).cpu().numpy(),
                entries=row_sparsity(matrix.abs().flatten().double().cpu().numpy()),
            )
        )
        tell(done, len(matrices), "tensors")
    return tuple(spectra)


def _step_gradient(
    policy: MeasuredPolicy, groups: Sequence[RolloutGroup], objective: Objective, budget: TokenBudget
) -> dict[str, torch.Tensor]:
    """The gradient of the step's loss by parameter; a parameter that gets none is absent."""
    plan = plan_step(policy, groups, objective, budget)
    score_rows = list(plan.index("score").values())

    def attempt(batch_tokens: int) -> dict[str, torch.Tensor]:
        return _added_up(policy, plan, batch_rows(policy, plan, score_rows, batch_tokens))

    return budget.fit([plan.lengths[row] for row in score_rows], attempt)


def _added_up(policy: MeasuredPolicy, plan: RowPlan, batches: Sequence[PaddedBatch]) -> dict[str, torch.Tensor]:
    """The gradients of some batches together."""
    gradient: dict[str, torch.Tensor] = {}

    def add(name: str, grad: torch.Tensor) -> None:
        part = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
        gradient[name] = gradient[name] + part if name in gradient else part.clone()

    def weigh(batch: PaddedBatch) -> Weigh:
        return lambda position, logprobs: plan.gradient(plan.rows[batch.rows[position]].sequence, logprobs)

    for batch in batches:
        backward(policy.model, policy.trainable, batch, plan.objective.temperature, weigh(batch), add)
    return gradient

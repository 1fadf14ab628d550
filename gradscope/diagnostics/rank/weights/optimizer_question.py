"""What is asked of a step beside the ranks of its weights: the steps of several optimizers from the same gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gradscope.diagnostics.inputs.row_questions import RowQuestion
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import cosines
from gradscope.metrics.gram.spectrum import effective_rank
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.update import OptimizerStep
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import MatrixSteps, TensorNorm
    from gradscope.gradients.step.step_gram import StepGram

_NO_RATE = "the trainer's learning rate is not known at this step"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOfStep:
    """What is kept of a step's gradient."""

    norms: tuple[TensorNorm, ...]
    """Of every parameter."""
    steps: tuple[MatrixSteps, ...]
    """Of every matrix; none where several processes share the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerQuestion:
    """Rows of weights, where the gradient is, and first steps of optimizers."""

    rows: RowQuestion
    """What is asked of the rows."""
    learning_rates: Mapping[int, float]
    """Step -> the logged learning rate."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[tuple[Any, ...], GradientOfStep | None]:
        """All of it; None for the gradient where advantages were not logged."""
        from gradscope.gradients.processes import num_connected
        from gradscope.gradients.step.directions import measure_optimizer_steps, measure_tensor_norms, step_gradient

        rows = self.rows.measure(prepared, gram, progress)
        if any(advantages is None for advantages in prepared.plan.advantages):
            return rows, None
        gradient = step_gradient(prepared)
        steps: tuple[MatrixSteps, ...] = ()
        if num_connected() == 1:  # else each process has a part of every matrix
            rate = self.learning_rates.get(gram.step)
            steps = measure_optimizer_steps(prepared.policy.trainable, gradient, rate, progress)
        return rows, GradientOfStep(norms=measure_tensor_norms(prepared, gradient), steps=steps)


def learning_rates(run: Run) -> dict[int, float]:
    """The learning rate of each step, as it was logged there, where it is above zero."""
    names = ("learning_rate", "actor/lr", "train/lr", "optim/lr")
    logged = ((step, next((values[n] for n in names if n in values), 0.0)) for step, values in run.metrics.items())
    return {step: rate for step, rate in logged if rate > 0}


def optimizer_steps(step: int, found: Sequence[MatrixSteps]) -> list[OptimizerStep]:
    """The three steps over all matrices together, then of each; none without a gradient."""
    if not found:
        return []
    from gradscope.gradients.step.directions import OPTIMIZERS

    names = tuple(OPTIMIZERS)
    whole = np.sum([one.products for one in found], axis=0)
    entries = sum(one.num_entries for one in found)
    ranks = [[effective_rank(values) for values in one.singular_values] for one in found]
    rows = [
        OptimizerStep(
            step=step,
            tensor=None,
            optimizer=name,
            effective_rank=Estimate.exact(float(np.mean([of[at].value or 0.0 for of in ranks])), num_units=len(found)),
            cosines=_cosines(whole, names, at),
            bfloat16_moved=_share([one.num_moved[at] if one.num_moved else None for one in found], entries),
        )
        for at, name in enumerate(names)
    ]
    return rows + [
        OptimizerStep(
            step=step,
            tensor=one.tensor,
            optimizer=name,
            effective_rank=ranks[place][at],
            cosines=_cosines(one.products, names, at),
            bfloat16_moved=_share([one.num_moved[at] if one.num_moved else None], one.num_entries),
        )
        for place, one in enumerate(found)
        for at, name in enumerate(names)
    ]


def _cosines(products: np.ndarray, names: Sequence[str], at: int) -> dict[str, Estimate]:
    angles = cosines(products)[at]
    return {name: Estimate.exact(float(angle)) for name, angle in zip(names, angles, strict=True) if name != names[at]}


def _share(moved: Sequence[int | None], entries: int) -> Estimate:
    known = [number for number in moved if number is not None]
    if len(known) < len(moved):
        return Estimate.undefined_because(_NO_RATE)
    return Estimate.exact(sum(known) / entries, num_units=entries)

"""dL/dW of a whole step: its spectrum by matrix, where in the model it is, and what optimizers would make of it.

Shapes: O outputs, I inputs of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.inputs.row_questions import RowQuestion
from gradscope.diagnostics.rank.spectrum import ranks_of
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import cosines
from gradscope.metrics.gram.spectrum import effective_rank, gaussian_matrix_values
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results.rank import GradientSpectrum, SpectrumLabel
from gradscope.results.update import ModuleShare, OptimizerStep
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import MatrixSteps, TensorNorm, WeightSpectrum
    from gradscope.gradients.step.step_gram import StepGram


def weight_spectra(step: int, spectra: Iterable[WeightSpectrum], gram: StepGram) -> Iterator[GradientSpectrum]:
    """Spectra of dL/dW as the optimizer saw it, each beside that of a matrix of independent entries."""
    size = max(np.unique(gram.group_ids, return_counts=True)[1].tolist())
    for spectrum in spectra:
        values = spectrum.singular_values
        floor = gram.relative_row_error * float(np.sqrt(np.sum(values**2)))
        yield GradientSpectrum(
            label=SpectrumLabel(
                step=step,
                rows="weight",
                advantage=LOGGED,
                group_size=size,
                tensor=spectrum.tensor,
                shape=spectrum.shape,
            ),
            singular_values=tuple(float(value) for value in values),
            noise_floor=floor,
            ranks=ranks_of(values, floor),
            nulls={"gaussian": effective_rank(gaussian_matrix_values(*spectrum.shape))},
        )


_Module = Literal["output head", "embedding", "attention", "mlp", "other"]
_WORDS: dict[_Module, tuple[str, ...]] = {
    "output head": ("lm_head", "embed_out", "output_layer"),
    "embedding": ("embed", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "ffn", "experts", "block_sparse_moe"),
}
"""What the names of such weights hold; the first kind that a name fits counts."""


def _module_of(tensor: str) -> _Module:
    """The kind of module that a weight is of, by its name."""
    return next((kind for kind, words in _WORDS.items() if any(word in tensor for word in words)), "other")


def module_shares(step: int, norms: Sequence[TensorNorm]) -> list[ModuleShare]:
    """The parts of a gradient by kind of module; none where it is zero."""
    energies: dict[_Module, float] = {}
    numbers: dict[_Module, int] = {}
    for one in norms:
        kind = _module_of(one.tensor)
        energies[kind] = energies.get(kind, 0.0) + one.norm**2
        numbers[kind] = numbers.get(kind, 0) + one.num_entries
    whole = sum(energies.values())
    return [
        ModuleShare(
            step=step,
            module=kind,
            norm=Estimate.exact(math.sqrt(energies[kind])),
            energy_share=Estimate.exact(energies[kind] / whole),
            frac_parameters=Estimate.exact(numbers[kind] / sum(numbers.values())),
        )
        for kind in get_args(_Module)
        if kind in energies and whole > 0
    ]


_NO_RATE = "the trainer's learning rate is not known at this step"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOfStep:
    """What is kept of a step's gradient."""

    norms: tuple[TensorNorm, ...]  # of every parameter
    steps: tuple[MatrixSteps, ...]  # of every matrix; none where several processes share the model


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerQuestion:
    """Rows of weights, where the gradient is, and first steps of optimizers."""

    rows: RowQuestion  # what is asked of the rows
    learning_rates: Mapping[int, float]  # step -> the logged learning rate

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

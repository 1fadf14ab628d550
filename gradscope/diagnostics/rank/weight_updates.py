"""dL/dW of a whole step, weight by weight, and what training did to each weight, from checkpoints alone.

A low-rank gradient and a low-rank update are different things; only side by side are they not mistaken for each other.

Shapes: O outputs, I inputs of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import truediv
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.rank import rank_headline
from gradscope.findings.rank_parts import adapter_findings, idle_adapter_findings, weight_update_findings
from gradscope.gradients.engine_options import require_libraries
from gradscope.metrics.gram import spectrum as gram_spectrum
from gradscope.metrics.gram.geometry import cosines
from gradscope.progress import ProgressCallback, no_progress
from gradscope.results import rank as results
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.model.checkpoint import Checkpoint
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.directions import MatrixSteps, TensorNorm, WeightSpectrum
    from gradscope.gradients.step.step_gram import StepGram


def weight_spectra(step: int, spectra: Iterable[WeightSpectrum], gram: StepGram) -> Iterator[results.GradientSpectrum]:
    """Spectra of dL/dW as the optimizer saw it, each with that of a matrix of independent entries."""
    size = max(np.unique(gram.group_ids, return_counts=True)[1].tolist())
    for spectrum in spectra:
        values = spectrum.singular_values
        floor = gram.relative_row_error * float(np.sqrt(np.sum(values**2)))
        yield results.GradientSpectrum(
            label=results.SpectrumLabel(
                step=step,
                rows="weight",
                advantage=LOGGED,
                group_size=size,
                tensor=spectrum.tensor,
                shape=spectrum.shape,
            ),
            singular_values=tuple(float(value) for value in values),
            noise_floor=floor,
            ranks=results.Ranks(**gram_spectrum.rank_estimates(values, floor)),
            nulls={"gaussian": gram_spectrum.effective_rank(gram_spectrum.gaussian_matrix_values(*spectrum.shape))},
        )


_Module = Literal["output head", "embedding", "attention", "mlp", "other"]
_WORDS: dict[_Module, tuple[str, ...]] = {
    "output head": ("lm_head", "embed_out", "output_layer"),
    "embedding": ("embed", "wte", "wpe"),
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "feed_forward", "ffn", "experts", "block_sparse_moe"),
}
"""What the names of such weights hold; the first kind that a name fits counts."""


def module_shares(step: int, norms: Sequence[TensorNorm]) -> list[results.ModuleShare]:
    """The parts of a gradient by kind of module; none where it is zero."""
    energies: dict[_Module, float] = {}
    numbers: dict[_Module, int] = {}
    for weight in norms:
        named = (kind for kind, words in _WORDS.items() if any(word in weight.tensor for word in words))
        kind: _Module = next(named, "other")
        energies[kind] = energies.get(kind, 0.0) + weight.norm**2
        numbers[kind] = numbers.get(kind, 0) + weight.num_entries
    total = sum(energies.values())
    return [
        results.ModuleShare(
            step=step,
            module=kind,
            norm=Estimate.exact(math.sqrt(energies[kind])),
            energy_share=Estimate.exact(energies[kind] / total),
            frac_parameters=Estimate.exact(numbers[kind] / sum(numbers.values())),
        )
        for kind in get_args(_Module)
        if kind in energies and total > 0
    ]


_NO_RATE = "the trainer's learning rate is not known at this step"


class GradientSummary(Struct, frozen=True, kw_only=True):
    """Summaries of a step's gradient."""

    norms: tuple[TensorNorm, ...]  # of every parameter
    steps: tuple[MatrixSteps, ...]  # of every matrix; none where several processes share the model


def summarize_gradient(
    prepared: PreparedStep,
    gram: StepGram,
    progress: ProgressCallback = no_progress,
    *,
    learning_rates: Mapping[int, float],
) -> GradientSummary | None:
    """Where a step's gradient is, and optimizers' first steps at its rate; None where advantages were not logged."""
    from gradscope.gradients.processes import num_connected
    from gradscope.gradients.step.directions import measure_optimizer_steps, measure_tensor_norms, step_gradient

    if any(advantages is None for advantages in prepared.plan.advantages):
        return None
    gradient = step_gradient(prepared)
    steps: tuple[MatrixSteps, ...] = ()
    if num_connected() == 1:  # else each process has a part of every matrix
        rate = learning_rates.get(gram.step)
        steps = measure_optimizer_steps(prepared.policy.trainable, gradient, rate, progress)
    return GradientSummary(norms=measure_tensor_norms(prepared, gradient), steps=steps)


def learning_rates(run: Run) -> dict[int, float]:
    """The learning rate of each step, as it was logged there, where it is above zero."""
    logged: dict[int, float] = {}
    for name in ("optim/lr", "train/lr", "actor/lr", "learning_rate"):  # the last of these goes before the others
        logged |= run.step_metrics.by_step(name)
    return {step: rate for step, rate in sorted(logged.items()) if rate > 0}


def optimizer_steps(step: int, matrices: Sequence[MatrixSteps]) -> list[results.OptimizerStep]:
    """The three steps over all matrices together, then of each; none without a gradient."""
    if not matrices:
        return []
    from gradscope.gradients.step.directions import OPTIMIZERS

    names = tuple(OPTIMIZERS)
    rows = []
    for tensor, chosen in ((None, matrices), *((matrix.tensor, [matrix]) for matrix in matrices)):
        angles = cosines(np.sum([matrix.products for matrix in chosen], axis=0))
        entries, is_known = sum(matrix.num_entries for matrix in chosen), all(matrix.num_moved for matrix in chosen)
        for row, name in enumerate(names):
            ranks = [gram_spectrum.effective_rank(matrix.singular_values[row]) for matrix in chosen]
            mean = Estimate.exact(float(np.mean([rank.value or 0.0 for rank in ranks])), num_units=len(ranks))
            moved = sum(matrix.num_moved[row] for matrix in chosen if matrix.num_moved)
            rows.append(
                results.OptimizerStep(
                    step=step,
                    tensor=tensor,
                    optimizer=name,
                    effective_rank=mean if tensor is None else ranks[0],
                    cosines={
                        other: Estimate.exact(float(angle))
                        for other, angle in zip(names, angles[row], strict=True)
                        if other != name
                    },
                    bfloat16_moved=Estimate.exact(moved / entries, num_units=entries)
                    if is_known
                    else Estimate.undefined_because(_NO_RATE),
                )
            )
    return rows


def _state(name: str, checkpoint: Checkpoint, matrix: gram_spectrum.Array, size: Estimate) -> results.AdapterState:
    down, expand = checkpoint.factors[name]()
    rank = len(down)
    left, right = gram_spectrum.unrelated_factors((expand.shape[0], down.shape[1]), rank)
    return results.AdapterState(
        tensor=name,
        num_updates=checkpoint.num_updates,
        rank=rank,
        a_norm=Estimate.exact(float(np.linalg.norm(down))),
        b_norm=Estimate.exact(float(np.linalg.norm(expand))),
        product_size=size.map(lambda norm: float(np.linalg.norm(matrix)) / norm),
        effective_rank=_rank_of(expand, down),
        unrelated_rank=_rank_of(left, right),
        alignment=gram_spectrum.factor_alignment(expand, down),
        unrelated_alignment=gram_spectrum.factor_alignment(left, right),
    )


def _rank_of(expand: gram_spectrum.Array, reduce: gram_spectrum.Array) -> Estimate:
    return gram_spectrum.effective_rank(gram_spectrum.frame_of(expand @ reduce).values[: len(reduce)])


_NO_BASE = "the base model of the adapter is not on this disk; name it with --model"


def update_report(run: Run, progress: ProgressCallback) -> results.RankReport:
    """The answer of ``rank --rows update``: no rollout is looked at, and no model is run."""
    updates, trajectories, adapters = _measure_weight_updates(run.weights, progress)
    report = results.RankReport(
        source=run.source,
        rows="update",
        updates=updates,
        trajectories=trajectories,
        adapters=adapters,
        findings=(
            *idle_adapter_findings(adapters),
            *weight_update_findings(updates, trajectories, is_adapter=bool(adapters)),
            *adapter_findings(adapters),
        ),
    )
    return replace(report, headline=rank_headline(report))


def _measure_weight_updates(
    weights: Sequence[WeightsRef], progress: ProgressCallback
) -> tuple[tuple[results.WeightUpdate, ...], tuple[results.UpdateTrajectory, ...], tuple[results.AdapterState, ...]]:
    """Every change since the first checkpoint and between neighbors, their trajectory, and an adapter's factors."""
    if len(weights) < 2 or len({ref.kind for ref in weights}) > 1:
        raise InputError(
            f"An update needs two checkpoints of one kind, and there are {len(weights)}.",
            hint="Save checkpoints, or name the weights before the first update: --initial FOLDER",
        )
    require_libraries()
    from gradscope.gradients.model.checkpoint import base_matrices, common_tensors, open_checkpoint

    checkpoints = [open_checkpoint(ref) for ref in weights]
    base, names = base_matrices(weights[0]), common_tensors(checkpoints)
    if not names:
        raise InputError("The checkpoints share no weight matrix.", hint="Check that they are of one run.")
    updates: list[results.WeightUpdate] = []
    adapters: list[results.AdapterState] = []
    grams: dict[str, gram_spectrum.Array] = {}
    for done, name in enumerate(names, start=1):
        initial = base[name]() if name in base else None
        matrices = [checkpoint.matrices[name]() for checkpoint in checkpoints]
        updates += _changes(name, checkpoints, matrices, initial)
        pairs = zip(checkpoints, matrices, strict=True)
        adapters += [_state(name, saved, matrix, _size(initial)) for saved, matrix in pairs if saved.factors]
        rows = np.stack([(matrix - matrices[0]).ravel() for matrix in matrices[1:]])
        grams[name] = rows @ rows.T
        progress(done, len(names), "tensors")
    times = tuple(checkpoint.num_updates for checkpoint in checkpoints[1:])
    overall = _trajectory(None, np.sum(list(grams.values()), axis=0), times)
    trajectories = (overall, *(_trajectory(name, gram, times) for name, gram in grams.items()))
    return tuple(updates), trajectories, tuple(adapters)


def _changes(
    name: str,
    checkpoints: Sequence[Checkpoint],
    matrices: Sequence[gram_spectrum.Array],
    initial: gram_spectrum.Array | None,
) -> Iterator[results.WeightUpdate]:
    """Since the first checkpoint, then between neighbors that are not that already."""
    pairs = [(0, later) for later in range(1, len(checkpoints))]
    pairs += [pair for pair in pairwise(range(len(checkpoints))) if pair not in pairs]
    merged: Sequence[gram_spectrum.Array] | None = matrices
    if checkpoints[0].factors:  # the weights of an adapter are those of its base with the product added
        merged = None if initial is None else [initial + matrix for matrix in matrices]
    frames = None if merged is None else [gram_spectrum.frame_of(matrix) for matrix in merged]
    is_base = initial is not None and merged is not None and np.array_equal(initial, merged[0])
    base = None if initial is None else frames[0] if is_base and frames else gram_spectrum.frame_of(initial)
    for first, last in pairs:
        change = matrices[last] - matrices[first]
        values = np.asarray(np.linalg.svd(change, compute_uv=False), dtype=np.float64)
        shape, rank = (change.shape[0], change.shape[1]), min(change.shape)
        if checkpoints[last].factors:  # a product that was zero adds no directions to the difference
            rank = min(
                rank,
                sum(len(checkpoints[index].factors[name]()[0]) for index in (first, last) if matrices[index].any()),
            )
        gaussian = gram_spectrum.gaussian_matrix_values(*shape)
        if rank < min(shape):
            gaussian = gram_spectrum.frame_of(gram_spectrum.unrelated_matrix(shape, rank)).values[:rank]
        unknown = Estimate.undefined_because(_NO_BASE)
        overlap, null = (unknown, unknown) if base is None else gram_spectrum.principal_overlap(base, change)
        yield results.WeightUpdate(
            tensor=name,
            first=checkpoints[first].num_updates,
            last=checkpoints[last].num_updates,
            shape=shape,
            singular_values=tuple(float(value) for value in values),
            effective_rank=gram_spectrum.effective_rank(values),
            gaussian=gram_spectrum.effective_rank(gaussian),
            stable_rank=gram_spectrum.stable_rank(values),
            top_energy=_top(values),
            update_size=_size(initial).map(partial(truediv, float(np.linalg.norm(change)))),
            principal_overlap=overlap,
            principal_null=null,
            **_turn(change, rank, merged, frames, (first, last)),
        )


def _size(initial: gram_spectrum.Array | None) -> Estimate:
    size = 0.0 if initial is None else float(np.linalg.norm(initial))
    return Estimate.exact(size) if size > 0 else Estimate.undefined_because(_NO_BASE)


def _turn(
    change: gram_spectrum.Array,
    rank: int,
    merged: Sequence[gram_spectrum.Array] | None,
    frames: Sequence[gram_spectrum.SingularFrame] | None,
    pair: tuple[int, int],
) -> dict[str, Estimate]:
    from gradscope.gradients.model.checkpoint import changed_in_bfloat16

    if merged is None or frames is None:
        names = ("spectrum_drift", "spectrum_drift_null", "principal_angle", "principal_angle_null", "bfloat16_changed")
        return dict.fromkeys(names, Estimate.undefined_because(_NO_BASE))
    before, after, size = frames[pair[0]], frames[pair[1]], float(np.linalg.norm(change))
    null = gram_spectrum.frame_of(
        merged[pair[0]] + size * gram_spectrum.unrelated_matrix((change.shape[0], change.shape[1]), max(rank, 1))
    )
    return {
        "spectrum_drift": gram_spectrum.spectrum_drift(before, after, size),
        "spectrum_drift_null": gram_spectrum.spectrum_drift(before, null, size),
        "principal_angle": gram_spectrum.principal_angle(before, after),
        "principal_angle_null": gram_spectrum.principal_angle(before, null),
        "bfloat16_changed": Estimate.exact(changed_in_bfloat16(merged[pair[0]], merged[pair[1]])),
    }


def _trajectory(name: str | None, gram: gram_spectrum.Array, times: tuple[int, ...]) -> results.UpdateTrajectory:
    walk = gram_spectrum.random_walk_gram(times)
    values, walked = gram_spectrum.singular_values_from_gram(gram), gram_spectrum.singular_values_from_gram(walk)
    return results.UpdateTrajectory(
        tensor=name,
        num_updates=times,
        effective_rank=gram_spectrum.effective_rank(values),
        top_energy=_top(values),
        linear_growth=gram_spectrum.linear_growth(gram, times),
        walk_effective_rank=gram_spectrum.effective_rank(walked),
        walk_top_energy=_top(walked),
        walk_linear_growth=gram_spectrum.linear_growth(walk, times),
    )


def _top(values: np.ndarray) -> Estimate:
    energy = float(np.sum(values**2))
    return (
        Estimate.exact(float(values[0] ** 2) / energy)
        if energy > 0
        else Estimate.undefined_because(gram_spectrum.ZERO_MATRIX)
    )


def gradients_and_updates(
    run: Run, spectra: Sequence[results.GradientSpectrum]
) -> tuple[results.GradientAndUpdate, ...]:
    """Each measured gradient with the change from the weights that it was computed at to the next checkpoint."""
    # None for a step without a later checkpoint, and none of an adapter.
    from gradscope.gradients.model.checkpoint import common_tensors, open_checkpoint

    pairs = []
    for step in sorted({spectrum.label.step for spectrum in spectra}):
        before, after = run.weights_before(step), run.weights_after(step)
        if before is None or before.kind == "adapter" or after is None:
            continue
        first, last = open_checkpoint(before), open_checkpoint(after)
        names = set(common_tensors([first, last]))
        for spectrum in spectra:
            if spectrum.label.step != step or spectrum.label.tensor not in names:
                continue
            change = last.matrices[spectrum.label.tensor]() - first.matrices[spectrum.label.tensor]()
            values = np.linalg.svd(change, compute_uv=False)
            pairs.append(
                results.GradientAndUpdate(
                    step=step,
                    tensor=spectrum.label.tensor,
                    first=first.num_updates,
                    last=last.num_updates,
                    gradient_rank=spectrum.ranks.effective_rank,
                    gradient_top_energy=_top(np.array(spectrum.singular_values)),
                    update_rank=gram_spectrum.effective_rank(values),
                    update_top_energy=_top(values),
                    gaussian=spectrum.nulls["gaussian"],
                )
            )
    return tuple(pairs)

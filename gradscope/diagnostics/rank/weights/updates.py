"""From checkpoints alone: what training did to each weight matrix. Letters: W_t weights after t updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.rank_headline import rank_headline
from gradscope.findings.weights import weight_update_findings
from gradscope.metrics.gram.null_models import gaussian_matrix_values
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array, effective_rank, singular_values_from_gram, stable_rank
from gradscope.metrics.gram.weight_update import linear_growth, principal_overlap, random_walk_gram
from gradscope.progress import ProgressCallback
from gradscope.results.rank import RankReport
from gradscope.results.update import UpdateTrajectory, WeightUpdate
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.model.checkpoint_tensors import Checkpoint


_NO_BASE = "the base model of the adapter is not on this disk; name it with --model"


def update_report(run: Run, progress: ProgressCallback) -> RankReport:
    """The answer of ``rank --rows update``: no rollout is looked at, and no model is run."""
    updates, trajectories = measure_weight_updates(run.weights, progress)
    report = RankReport(
        source=run.source,
        rows="update",
        spectra=(),
        curve=(),
        steps=(),
        skipped={},
        refused={},
        gram={},
        engine={},
        updates=updates,
        trajectories=trajectories,
        findings=weight_update_findings(updates, trajectories),
    )
    return replace(report, headline=rank_headline(report))


def measure_weight_updates(
    weights: Sequence[WeightsRef], progress: ProgressCallback
) -> tuple[tuple[WeightUpdate, ...], tuple[UpdateTrajectory, ...]]:
    """Every change since the first checkpoint and between neighbors, and the trajectory of them.

    Returns:
        Changes by tensor, and trajectories: all tensors together first.

    Raises:
        InputError: There are fewer than two checkpoints of one kind, or they share no matrix.
    """
    from gradscope.gradients.model.checkpoint_tensors import base_matrices, common_tensors, open_checkpoint

    if len(weights) < 2 or len({ref.kind for ref in weights}) > 1:
        raise InputError(
            f"An update needs two checkpoints of one kind, and there are {len(weights)}.",
            hint="Save checkpoints, or name the weights before the first update: --initial FOLDER",
        )
    checkpoints = [open_checkpoint(ref) for ref in weights]
    base, names = base_matrices(weights[0]), common_tensors(checkpoints)
    if not names:
        raise InputError("The checkpoints share no weight matrix.", hint="Check that they are of one run.")
    is_adapter = weights[0].kind == "adapter"
    updates: list[WeightUpdate] = []
    grams: dict[str, Array] = {}
    for done, name in enumerate(names, start=1):
        initial = base[name]() if name in base else None
        matrices = [checkpoint.matrices[name]() for checkpoint in checkpoints]
        updates += _changes(name, checkpoints, matrices, initial, is_adapter=is_adapter)
        rows = np.stack([(matrix - matrices[0]).ravel() for matrix in matrices[1:]])
        grams[name] = rows @ rows.T
        progress(done, len(names), "tensors")
    times = tuple(checkpoint.num_updates for checkpoint in checkpoints[1:])
    whole = _trajectory(None, np.sum(list(grams.values()), axis=0), times)
    return tuple(updates), (whole, *(_trajectory(name, gram, times) for name, gram in grams.items()))


def _changes(
    name: str, checkpoints: Sequence[Checkpoint], matrices: Sequence[Array], initial: Array | None, *, is_adapter: bool
) -> Iterator[WeightUpdate]:
    """Since the first checkpoint, then between neighbors that are not that already."""
    times = [checkpoint.num_updates for checkpoint in checkpoints]
    pairs = [(0, later) for later in range(1, len(times))]
    pairs += [pair for pair in pairwise(range(len(times))) if pair not in pairs]
    for first, last in pairs:
        before, after = matrices[first], matrices[last]
        if is_adapter and initial is not None:
            before, after = initial + before, initial + after
        yield _change(name, times[first], times[last], before, after, matrices[last] - matrices[first], initial)


def _change(
    name: str, first: int, last: int, before: Array, after: Array, change: Array, initial: Array | None
) -> WeightUpdate:
    from gradscope.gradients.model.checkpoint_tensors import changed_in_bfloat16

    values = np.asarray(np.linalg.svd(change, compute_uv=False), dtype=np.float64)
    energy = float(np.sum(values**2))
    none = Estimate.undefined_because(_NO_BASE)
    overlap, null = (none, none) if initial is None else principal_overlap(initial, change)
    size = 0.0 if initial is None else float(np.linalg.norm(initial))
    return WeightUpdate(
        tensor=name,
        first=first,
        last=last,
        shape=(change.shape[0], change.shape[1]),
        update_size=Estimate.exact(float(np.sqrt(energy)) / size) if size > 0 else none,
        singular_values=tuple(float(value) for value in values),
        effective_rank=effective_rank(values),
        gaussian=effective_rank(gaussian_matrix_values(*change.shape)),
        stable_rank=stable_rank(values),
        top_energy=_top(values),
        principal_overlap=overlap,
        principal_null=null,
        bfloat16_changed=none if initial is None else Estimate.exact(changed_in_bfloat16(before, after)),
    )


def _trajectory(name: str | None, gram: Array, times: tuple[int, ...]) -> UpdateTrajectory:
    walk = random_walk_gram(times)
    values, walked = singular_values_from_gram(gram), singular_values_from_gram(walk)
    return UpdateTrajectory(
        tensor=name,
        num_updates=times,
        effective_rank=effective_rank(values),
        top_energy=_top(values),
        linear_growth=linear_growth(gram, times),
        walk_effective_rank=effective_rank(walked),
        walk_top_energy=_top(walked),
        walk_linear_growth=linear_growth(walk, times),
    )


def _top(values: Array) -> Estimate:
    energy = float(np.sum(values**2))
    return Estimate.exact(float(values[0] ** 2) / energy) if energy > 0 else Estimate.undefined_because(ZERO_MATRIX)

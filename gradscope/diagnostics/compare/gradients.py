"""The gradients of compared runs: effective rank and signal to noise, each run under the advantages that trained it.

Runs are measured at the steps that all of them saved the weights for, so that none is looked at later than another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.errors import InputError
from gradscope.progress import ProgressCallback, no_progress, part
from gradscope.results.rank import RankReport

EFFECTIVE_RANK, SIGNAL_TO_NOISE = "effective_rank", "signal_to_noise"
Point = tuple[int, str, float]
"""Step, metric, value."""


def measure_gradients(
    runs: Sequence[ComparedRun], *, progress: ProgressCallback = no_progress
) -> dict[Path, dict[str, float]]:
    """What the gradients of each run were like.

    Args:
        runs: The runs, with weights on disk.
        progress: Told as the steps of each run go on.

    Returns:
        Folder -> metric -> mean over the common steps; a metric that is defined at none of them is absent.

    Raises:
        InputError: The runs have no measurable step in common.
    """
    points: dict[Path, list[Point]] = {}
    for done, run in enumerate(runs):
        told = part(progress, done, len(runs), f"gradients of runs, now {run.path.name}")
        sizes = () if run.group_size is None else (run.group_size,)
        report = measure_rank(run.path, advantages=(LOGGED,), group_sizes=sizes, progress=told)
        points[run.path] = list(_points(report))
    common = set.intersection(*({step for step, _, _ in found} for found in points.values()))
    if not common:
        raise InputError(
            "The runs have no step in common whose gradients can be recomputed.",
            hint="Train them with one --checkpoint-every, or leave out --gradients.",
        )
    return {path: _means([point for point in found if point[0] in common]) for path, found in points.items()}


def _points(report: RankReport) -> Iterator[Point]:
    for curve in report.curve:
        if curve.advantage == LOGGED and curve.effective_rank.value is not None:
            yield curve.step, EFFECTIVE_RANK, curve.effective_rank.value
    for update in report.formulations:
        if update.advantage == LOGGED and update.signal_to_noise.value is not None:
            yield update.step, SIGNAL_TO_NOISE, update.signal_to_noise.value


def _means(points: Sequence[Point]) -> dict[str, float]:
    names = dict.fromkeys(name for _, name, _ in points)
    return {name: float(np.mean([value for _, metric, value in points if metric == name])) for name in names}

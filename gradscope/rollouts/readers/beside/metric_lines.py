"""Metrics that lie beside rollouts: lines by step, and what of a service's or TensorBoard's is in the folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import logged_numbers
from gradscope.rollouts.run import Run

Metrics = dict[int, dict[str, float]]


def metric_lines(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """What some files log, several lines a step among them; lines without a step are left out.

    Args:
        files: Files of JSON lines.
        names: The trainer's name of what every trainer logs -> the common name.
        quarantine: Takes what cannot be read.

    Returns:
        Step -> name -> value.
    """
    lines = QuarantineLog()
    found: Metrics = {}
    for file in files:
        for _, row in read_jsonl(file, lines):
            step = whole_number(row.get("step"))
            if step is not None:
                found.setdefault(step, {}).update(renamed(logged_numbers(row), names))
    quarantine.lose_metrics(lines)
    for metrics in found.values():
        metrics.pop("step", None)
    return found


def renamed(metrics: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """Numbers under common names where they have one.

    Returns:
        Name -> number.

    Example:
        >>> renamed({"optim/grad_norm": 0.5, "loss": 1.0}, {"optim/grad_norm": "grad_norm"})
        {'grad_norm': 0.5, 'loss': 1.0}
    """
    return {names.get(name, name): value for name, value in metrics.items()}


def with_logged_metrics(request: ReadRequest, run: Run) -> Run:
    """The run with the metrics in its folder: TensorBoard's files, or a ``metrics.jsonl`` under the trainer's names.

    Returns:
        The run; without metrics, which is said, where the files are of several folders, which may be several runs.
    """
    folder = request.path if request.path.is_dir() else request.path.parent
    folder = folder.parent if folder.name == "rollout_data" else folder
    events, lines, quarantine = event_files(folder), folder / "metrics.jsonl", QuarantineLog()
    folders = sorted({str(file.parent) for file in events})
    if len(folders) > 1:
        named = f"{len(folders)} folders ({', '.join(folders[:3])}{', ...' if len(folders) > 3 else ''})"
        said = f"TensorBoard's files lie in {named}: which are of this run is not known, and none were read."
        return replace(run, source=replace(run.source, missing=(*run.source.missing, said)))
    if folders:
        found = _with(run, events, _scalars(events, quarantine))
    elif lines.is_file():
        found = _with(run, [lines], metric_lines([lines], {}, quarantine))
    else:
        return run
    return replace(found, source=with_set_aside(found.source, quarantine))


def _with(run: Run, files: list[Path], metrics: Metrics) -> Run:
    source = replace(run.source, files=(*run.source.files, *map(str, files)))
    return replace(run, source=source, metrics=metrics)


def _scalars(files: list[Path], quarantine: QuarantineLog) -> Metrics:
    found: Metrics = {}
    for file in files:
        for step, scalars in scalars_in(file, quarantine.of_metrics(file)).items():
            found.setdefault(step, {}).update(scalars)
    return found

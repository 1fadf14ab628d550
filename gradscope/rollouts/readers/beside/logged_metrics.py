"""Metrics of trainers that log them to a service or to TensorBoard: what of it lies in the folder of rollouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.readers.beside.metric_lines import Metrics, metric_lines
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.run import Run


def with_logged_metrics(request: ReadRequest, run: Run) -> Run:
    """The run with the metrics in its folder: TensorBoard's files, or a ``metrics.jsonl`` under the trainer's names.

    Returns:
        The run; without metrics where the files are of several folders, which may be several runs.
    """
    folder = request.path if request.path.is_dir() else request.path.parent
    folder = folder.parent if folder.name == "rollout_data" else folder
    events, lines, quarantine = event_files(folder), folder / "metrics.jsonl", QuarantineLog()
    if len({file.parent for file in events}) == 1:
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

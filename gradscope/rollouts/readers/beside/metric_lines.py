"""A trainer's metrics in JSON lines, a step and its numbers in each, under names that are brought to common ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import logged_numbers

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

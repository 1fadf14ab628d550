"""verl's file of metrics: a line a step, ``{"step": N, "data": {...}}``, written by the logger "file"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gradscope.rollouts.readers.parsing.assemble import peek
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import logged_numbers

SWITCH_ON = (
    'No file of verl\'s metrics lies in or beside the folder: add "file" to trainer.logger and put it there '
    "(VERL_FILE_LOGGER_PATH)."
)
COMMON_NAMES = {"actor/grad_norm": "grad_norm", "critic/score/mean": "reward"}
"""verl's names of what every trainer logs."""


def find_metrics(folder: Path) -> Path | None:
    """The first ``.jsonl`` of metrics in a folder of rollouts, or in the one above; None where none is."""
    candidates = (
        file for parent in (folder, folder.parent) for file in sorted(parent.glob("*.jsonl")) if file.is_file()
    )
    return next((file for file in candidates if is_metrics(file)), None)


def is_metrics(file: Path) -> bool:
    """Whether a JSONL file's first readable line has a step and an object ``data``, and nothing else."""
    first = next(iter(peek(file)), {})
    return first.keys() == {"step", "data"} and isinstance(first["data"], Mapping)


def read_verl_metrics(file: Path, quarantine: QuarantineLog) -> dict[int, dict[str, float]]:
    """What verl logged: step -> numbers, finite or not, under verl's names but for those that every trainer logs.

    Args:
        file: A file of metrics; of a step that a resumed run logged again the later line counts.
        quarantine: Takes the lines that hold none.

    Returns:
        The metrics.
    """
    metrics: dict[int, dict[str, float]] = {}
    lines = QuarantineLog()
    for location, row in read_jsonl(file, lines):
        step = whole_number(row.get("step"))
        if step is None or not isinstance(row.get("data"), Mapping):
            lines.add("it has no step or no data", location)
            continue
        numbers = logged_numbers(row["data"])
        metrics[step] = {COMMON_NAMES.get(name, name): number for name, number in numbers.items()}
    quarantine.lose_metrics(lines)
    return metrics

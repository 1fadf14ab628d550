"""TRL's files of completions: which of them hold training rollouts, and of which step.

The trainer writes whatever its buffer holds whenever it logs. So an evaluation overwrites the file of its step, a batch
that serves several updates is written again at each of them, and a file after several unlogged steps holds the last
batch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.tables import natural, read_parquet
from gradscope.rollouts.readers.trl.state import TrlState

REQUIRED = ("step", "prompt", "completion", "advantage")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFile:
    """One file of training rollouts."""

    path: Path
    """The file."""
    step: int
    """The step it was first written at."""
    columns: tuple[str, ...]
    """Column names in order."""
    doubles: tuple[str, ...]
    """Names of the columns of type double, in order."""
    rows: tuple[dict[str, Any], ...]
    """Its rows in order."""
    repeated_at: tuple[int, ...] = ()
    """Later steps at which the same batch was written again."""


def completion_files(path: Path) -> tuple[Path, ...]:
    """The files of completions, by step, of an ``output_dir``, its ``completions`` folder, or one file."""
    if path.is_file():
        return (path,) if path.name.startswith("completions_") and path.suffix == ".parquet" else ()
    files = [*path.glob("completions/completions_*.parquet"), *path.glob("completions_*.parquet")]
    return tuple(sorted(files, key=natural))


def run_of(path: Path) -> Path:
    """The ``output_dir`` that a path belongs to, which is one for :func:`completion_files`."""
    folder = path.parent if path.is_file() else path
    return folder.parent if folder.name == "completions" else folder


def read_step_file(path: Path) -> StepFile:
    """One file of completions.

    Returns:
        What it holds.

    Raises:
        InputError: It is damaged, lacks a column, or holds several steps.
    """
    table = read_parquet(path)
    absent = [name for name in REQUIRED if name not in table.column_names]
    if absent:
        raise InputError(
            f"{path} lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)} that TRL writes.",
            hint="Use --reader generic and name the columns.",
        )
    steps = table["step"].unique().to_pylist() if pa.types.is_integer(table.schema.field("step").type) else []
    if len(steps) != 1 or steps[0] is None:
        raise InputError(f"{path} does not hold one step, as TRL writes it.", hint="Use --reader generic.")
    return StepFile(
        path=path,
        step=steps[0],
        columns=tuple(table.column_names),
        doubles=tuple(field.name for field in table.schema if pa.types.is_floating(field.type)),
        rows=tuple(table.to_pylist()),
    )


def split_training(files: Sequence[StepFile], state: TrlState) -> tuple[list[StepFile], list[StepFile]]:
    """Training rollouts apart from evaluation.

    A repeat has the same rows and, in the trainer's log, no reward: rewards are logged when a batch is sampled. Where
    the trainer evaluated right after a repeat, its file has other rows, and the batch before it still served its step.

    Args:
        files: All files by step.
        state: The trainer's log.

    Returns:
        The files of training rollouts, repeats merged into the first, and the files of evaluation rows.
    """
    training: list[StepFile] = []
    evaluation: list[StepFile] = []
    for file in files:
        is_reuse = bool(training) and "reward" not in state.metrics.get(file.step, {})
        if file.step in state.eval_steps:
            evaluation.append(file)
            if is_reuse and file.step in state.metrics and file.step == _last_step(training[-1]) + 1:
                training[-1] = _repeat(training[-1], file.step)
        elif is_reuse and _same_rows(training[-1], file):
            training[-1] = _repeat(training[-1], file.step)
        else:
            training.append(file)
    return training, evaluation


def _last_step(file: StepFile) -> int:
    return max((file.step, *file.repeated_at))


def _same_rows(first: StepFile, second: StepFile) -> bool:
    return _content(first) == _content(second)


def _content(file: StepFile) -> list[str]:
    return [repr([(name, cell) for name, cell in row.items() if name != "step"]) for row in file.rows]


def _repeat(file: StepFile, step: int) -> StepFile:
    return StepFile(
        path=file.path,
        step=file.step,
        columns=file.columns,
        doubles=file.doubles,
        rows=file.rows,
        repeated_at=(*file.repeated_at, step),
    )

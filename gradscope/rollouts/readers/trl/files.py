"""TRL's files of completions: which of them hold training rollouts, and of which step.

The trainer writes whatever its buffer holds whenever it logs. So an evaluation overwrites the file of its step, a batch
that serves several updates is written again at each of them, and a file after several unlogged steps holds the last
batch only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.rollouts.arrays import to_floats, to_numpy
from gradscope.rollouts.readers.parsing.scalars import digest, finite_or_none, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import natural, parquet_columns, read_parquet
from gradscope.rollouts.readers.trl.blocks import RowPrompts
from gradscope.rollouts.readers.trl.state import TrlState
from gradscope.rollouts.reward_table import UNKNOWN

REQUIRED = ("step", "prompt", "completion", "advantage")
_IDS = "completion_ids"


@dataclass(frozen=True, kw_only=True)
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
    cells: pa.Table
    """Its columns, with the completions where they are looked at."""
    repeated_at: tuple[int, ...] = ()
    """Later steps at which the same batch was written again."""

    @property
    def size(self) -> int:
        """How many rows it has, N."""
        return len(self.cells)

    @cached_property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """Its rows in order, completions and all."""
        is_whole = len(self.cells.column_names) == len(self.columns)
        return tuple((self.cells if is_whole else read_parquet(self.path)).to_pylist())

    @cached_property
    def prompts(self) -> RowPrompts:
        """The prompts of its rows, text or messages."""
        prompts = self.cells["prompt"].combine_chunks()
        if pa.types.is_string(prompts.type) or pa.types.is_large_string(prompts.type):
            encoded = prompts.dictionary_encode(null_encoding="encode")
            return RowPrompts.of(encoded.dictionary.to_pylist(), to_numpy(encoded.indices), _text_id)
        return RowPrompts.of(prompts.to_pylist(), np.arange(self.size), prompt_id)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """The numbers of a column; NaN where a cell holds none, or one that is not finite, [N]."""
        if column not in self.columns:
            return np.full(self.size, math.nan)
        if column in self.doubles and not self.cells[column].null_count:
            numbers = to_numpy(self.cells[column].cast(pa.float64()))
            return np.where(np.isfinite(numbers), numbers, math.nan)
        return to_floats(map(finite_or_none, self.cells[column].to_pylist()))

    def lacks(self, column: str) -> bool:
        """Whether a row has no cell in a column."""
        return column not in self.columns or self.cells[column].null_count > 0

    def num_tokens(self) -> NDArray[np.int64]:
        """Tokens of each completion, -1 where its ids were not logged, [N]."""
        if _IDS not in self.columns:
            return np.full(self.size, UNKNOWN)
        lengths = [UNKNOWN if ids is None else len(ids) for ids in map(logged_ids, self.cells[_IDS].to_pylist())]
        return np.array(lengths, dtype=np.int64)


def prompt_id(prompt: Any) -> str:
    """The id of a prompt, text or messages."""
    return digest(parse_messages(prompt) or text_of(prompt))


@lru_cache(maxsize=1 << 16)
def _text_id(prompt: str | None) -> str:
    """Prompts return from step to step."""
    return prompt_id(prompt)


def logged_ids(ids: Any) -> tuple[int, ...] | None:
    """Ids that a reward function logged with ``log_extra``; None where a cell holds none."""
    return tuple(ids) if isinstance(ids, list) and all(type(token) is int for token in ids) else None


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


def read_step_file(path: Path, *, whole: bool = True) -> StepFile:
    """One file of completions.

    Args:
        whole: Whether completions are looked at, too.

    Returns:
        What it holds.

    Raises:
        InputError: It is damaged, lacks a column, or holds several steps.
    """
    columns = parquet_columns(path)
    absent = [name for name in REQUIRED if name not in columns]
    if absent:
        raise InputError(
            f"{path} lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)} that TRL writes.",
            hint="Use --reader generic and name the columns.",
        )
    table = read_parquet(path, without=() if whole else {"completion"})
    steps = table["step"].unique().to_pylist() if pa.types.is_integer(table.schema.field("step").type) else []
    if len(steps) != 1 or steps[0] is None:
        raise InputError(f"{path} does not hold one step, as TRL writes it.", hint="Use --reader generic.")
    return StepFile(
        path=path,
        step=steps[0],
        columns=columns,
        doubles=tuple(field.name for field in table.schema if pa.types.is_floating(field.type)),
        cells=table,
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
    return replace(file, repeated_at=(*file.repeated_at, step))

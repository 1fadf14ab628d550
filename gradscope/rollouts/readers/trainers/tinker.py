"""The Tinker cookbook's summaries of rollouts: rewards and lengths, no text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, numbers_in, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.run import Run

_ITERATION = re.compile(r"^iteration_(\d+)$")
_KEYS = frozenset({"group_idx", "traj_idx", "total_reward"})
_INFERRED = ("Prompts are not named: each group counts as a prompt of its own, although prompts return over epochs.",)
_MISSING = (
    hidden_by("remove_constant_reward_groups, where it was on, removes groups of equal rewards"),
    "Summaries hold lengths instead of text and tokens: they serve degeneracy, passk and check, not rank or replay.",
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds the cookbook's summaries of training rollouts.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``train_rollout_summaries.jsonl`` with group_idx, traj_idx and total_reward.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read summaries of training rollouts.

    Args:
        request: A ``log_path``, one of its iterations, or one file.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    return assemble(
        request,
        records=_records(files, quarantine),
        quarantine=quarantine,
        format="tinker",
        recognized=f"Tinker cookbook rollout summaries, {counted(len(files), 'file')}",
        inferred=_INFERRED,
        missing=_MISSING,
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    name = "train_rollout_summaries.jsonl"
    return files_like(path, f"iteration_*/{name}", name)


def _records(files: Sequence[Path], quarantine: QuarantineLog) -> Iterator[Record]:
    for file in files:
        for place, row in read_jsonl(file, quarantine):
            step = whole_number(row.get("iteration", number_in_name(_ITERATION, file)))
            index = whole_number(row.get("group_idx"))
            if step is None or index is None:
                quarantine.add(f"{'iteration' if step is None else 'group_idx'} is not a whole number", place)
                continue
            yield Record(
                step=step,
                group=str(index),
                prompt_id=f"{step}/{index}",
                prompt="",
                completion="",
                reward=usable_reward(row.get("total_reward", ABSENT), place, quarantine),
                rewards=numbers_in(row.get("trajectory_metrics")),
            )

"""rLLM's episodes: a JSON file each, in a folder a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import (
    generation_seconds,
    list_of,
    mapping_of,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, is_number, text_of
from gradscope.rollouts.readers.parsing.tables import files_like, read_rows
from gradscope.rollouts.run import Run

_KEYS = frozenset({"training_step", "task_hash", "trajectories"})
_BY_TASK = "Rollouts of one task_hash at one step are a group; equal tasks at one step merge."
_SEVERAL = "Episodes with several trajectories: those of one name form a group."


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rLLM's episodes.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``episode_*.json`` with training_step, task_hash and trajectories.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read rLLM's episodes of training.

    Args:
        request: An experiment's log folder, its ``episodes``, one step of them, or one file.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    seen: Counter[str] = Counter()
    records = list(_records(files, quarantine, seen))
    return assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="rllm",
        recognized=f"rLLM training episodes, {counted(len(files), 'file')}",
        inferred=[_BY_TASK, *([_SEVERAL] if seen[_SEVERAL] else [])],
        missing=(TEXT_ONLY,),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "episodes/train_step_*/episode_*.json", "train_step_*/episode_*.json", "episode_*.json")


def _records(files: Sequence[Path], quarantine: QuarantineLog, seen: Counter[str]) -> Iterator[Record]:
    for file in files:
        for place, row in read_rows(file, quarantine):
            step = whole_number(row.get("training_step"))
            trajectories = [mapping_of(trajectory) for trajectory in list_of(row.get("trajectories"))]
            if step is None:
                quarantine.add("the step is not a whole number", place)
            elif not row.get("task_hash"):
                quarantine.add("task_hash is missing", place)
            elif not trajectories:
                quarantine.add("the episode has no trajectory", place)
            else:
                seen[_SEVERAL] += len(trajectories) > 1
                for trajectory in trajectories:
                    yield _record(row, trajectory, step, len(trajectories) > 1, place, quarantine)


def _record(
    row: Mapping[str, Any],
    trajectory: Mapping[str, Any],
    step: int,
    several: bool,
    place: str,
    quarantine: QuarantineLog,
) -> Record:
    task = text_of(row["task_hash"])
    steps = list_of(trajectory.get("steps"))
    said = cut_conversation(mapping_of(steps[-1]).get("chat_completions") if steps else None)
    return Record(
        step=step,
        group=f"{task}/{text_of(trajectory.get('name'))}" if several else task,
        prompt_id=task,
        prompt=said.prompt or text_of(row.get("task")),
        completion=said.completion,
        messages=said.messages,
        reward=usable_reward(trajectory.get("reward", ABSENT), place, quarantine),
        rewards={"is_correct": float(row["is_correct"])} if is_number(row.get("is_correct")) else {},
        # The episode's time: where it holds several trajectories, each repeats it.
        seconds=None if several else generation_seconds(row),
    )

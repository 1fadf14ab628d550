"""rLLM's episodes of training: a JSON file each, in a folder a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import (
    generation_seconds,
    list_of,
    mapping_of,
    numbers_in,
    required_whole,
)
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of

_BY_TASK = "Rollouts of one task_hash at one step are a group; equal tasks at one step merge."
_SEVERAL = "Episodes with several trajectories: those of one name form a group."


def _records(row: LogRow) -> Iterator[Record]:
    step = required_whole(row.cells.get("training_step"), "the step")
    trajectories = [mapping_of(trajectory) for trajectory in list_of(row.cells.get("trajectories"))]
    if not row.cells.get("task_hash"):
        raise UnusableRowError("task_hash is missing")
    if not trajectories:
        raise UnusableRowError("the episode has no trajectory")
    if len(trajectories) > 1:
        row.reading.noted.add(_SEVERAL)
    for trajectory in trajectories:
        yield _record(row, trajectory, step, is_one_of_several=len(trajectories) > 1)


def _record(row: LogRow, trajectory: Mapping[str, Any], step: int, *, is_one_of_several: bool) -> Record:
    task = text_of(row.cells["task_hash"])
    steps = list_of(trajectory.get("steps"))
    conversation = cut_conversation(mapping_of(steps[-1]).get("chat_completions") if steps else None)
    return Record(
        step=step,
        group=f"{task}/{text_of(trajectory.get('name'))}" if is_one_of_several else task,
        prompt_id=task,
        prompt=conversation.prompt or text_of(row.cells.get("task")),
        completion=conversation.completion,
        messages=conversation.messages,
        reward=row.reward(trajectory.get("reward", ABSENT)),
        rewards=numbers_in({"is_correct": row.cells.get("is_correct")}),
        # The episode's time: where it holds several trajectories, each repeats it.
        seconds=None if is_one_of_several else generation_seconds(row.cells),
    )


FORMAT = RowFormat(
    name="rllm",
    looks_for="episodes/train_step_*/episode_*.json (rLLM)",
    title="rLLM training episodes",
    patterns=("episodes/train_step_*/episode_*.json", "train_step_*/episode_*.json", "episode_*.json"),
    recognizes_file=has_keys("training_step", "task_hash", "trajectories"),
    records=_records,
    inferred=(_BY_TASK, _SEVERAL),
    if_noted=frozenset({_SEVERAL}),
    missing=(TEXT_ONLY,),
)

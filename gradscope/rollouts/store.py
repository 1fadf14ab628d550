"""Our own Parquet file of rollouts: one a step, written whole, byte-equal for equal content, read back unchanged.

Log-probabilities are kept in float32, the precision they are computed in; all other numbers in float64.
Shapes: T tokens of a completion.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.errors import InputError
from gradscope.rollouts.files import atomic_write
from gradscope.rollouts.run_folder import rollouts_path, step_path
from gradscope.rollouts.types import Rollout, RolloutGroup

SCHEMA_VERSION = 1
_VERSION_KEY = b"gradscope.rollouts"
_REWARD_PREFIX = "reward/"

_BEFORE_REWARDS = (
    ("step", pa.int64()),
    ("group_id", pa.string()),
    ("prompt_id", pa.string()),
    ("sample", pa.int32()),
    ("row", pa.int32()),
    ("prompt", pa.string()),
    ("completion", pa.string()),
    ("messages", pa.string()),
    ("prompt_ids", pa.list_(pa.int32())),
    ("completion_ids", pa.list_(pa.int32())),
    ("reward", pa.float64()),
)
_AFTER_REWARDS = (
    ("token_rewards", pa.list_(pa.float64())),
    ("advantage", pa.float64()),
    ("token_advantages", pa.list_(pa.float64())),
    ("logprobs", pa.list_(pa.float32())),
    ("mask", pa.list_(pa.bool_())),
    ("status", pa.string()),
)
_WHERE_LOGGED = ("trainer_logprobs", pa.list_(pa.float32()))
"""A column of files in which some rollout has it."""
_AS_TUPLE = (
    "prompt_ids",
    "completion_ids",
    "token_rewards",
    "token_advantages",
    "logprobs",
    "mask",
    "trainer_logprobs",
)
_AS_IS = ("group_id", "sample", "row", "prompt", "completion", "reward", "advantage", "status")


def write_step_rollouts(run: Path, step: int, groups: Sequence[RolloutGroup], *, force: bool = False) -> Path:
    """Write one step's rollouts.

    Args:
        run: The run's folder.
        step: The step, counted from 1.
        groups: Its groups in order; all rollouts name the same reward functions.
        force: Replace the file that is there (a step repeated after a resume).

    Returns:
        The file.

    Raises:
        ValueError: There are no groups, a group is of another step, a group id occurs twice, a rollout is several
            sequences, or rollouts name different reward functions.
    """
    if not groups or any(group.step != step for group in groups):
        raise ValueError(f"write_step_rollouts takes the groups of step {step}, at least one and no others")
    if any(rollout.earlier for group in groups for rollout in group.rollouts):
        raise ValueError("a row of the file holds one sequence, and a rollout is several")
    if len({group.group_id for group in groups}) < len(groups):
        raise ValueError("a group id occurs twice")
    names = tuple(groups[0].rollouts[0].rewards)
    if any(tuple(rollout.rewards) != names for group in groups for rollout in group.rollouts):
        raise ValueError("all rollouts of a step name the same reward functions in the same order")
    rewards = [(_REWARD_PREFIX + name, pa.float64()) for name in names]
    has_trainers = any(rollout.trainer_logprobs is not None for group in groups for rollout in group.rollouts)
    more = (_WHERE_LOGGED,) if has_trainers else ()
    schema = pa.schema(
        [*_BEFORE_REWARDS, *rewards, *_AFTER_REWARDS, *more], metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()}
    )
    rows = [_to_row(group, rollout) for group in groups for rollout in group.rollouts]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    path = step_path(run, step)
    atomic_write(path, sink.getvalue(), force=force)
    return path


def step_files(run: Path) -> tuple[Path, ...]:
    """The files of rollouts that a run has, by step."""
    return tuple(sorted(rollouts_path(run).glob("step_*.parquet")))


def read_steps(run: Path) -> tuple[RolloutGroup, ...]:
    """All groups of a run, by step, then in the order they were written."""
    return tuple(group for path in step_files(run) for group in read_step_rollouts(path))


def read_step_rollouts(path: Path) -> tuple[RolloutGroup, ...]:
    """One file of rollouts, which :func:`write_step_rollouts` wrote.

    Returns:
        Its groups in order.

    Raises:
        InputError: The file is damaged, not ours, or of another version of the schema.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable Parquet file: {error}.", hint="Copy the file again.") from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if version != str(SCHEMA_VERSION).encode():
        raise InputError(
            f"{path} is not a rollout file of schema version {SCHEMA_VERSION}.",
            hint="Use the gradscope that wrote the run.",
        )
    groups = groupby(table.to_pylist(), key=lambda row: (row["step"], row["group_id"], row["prompt_id"]))
    return tuple(
        RolloutGroup(step=step, group_id=group, prompt_id=prompt, rollouts=tuple(map(_from_row, rows)))
        for (step, group, prompt), rows in groups
    )


def _to_row(group: RolloutGroup, rollout: Rollout) -> dict[str, Any]:
    messages = None if rollout.messages is None else json.dumps([dict(message) for message in rollout.messages])
    return {
        "step": group.step,
        "prompt_id": group.prompt_id,
        "messages": messages,
        **{name: getattr(rollout, name) for name in (*_AS_IS, *_AS_TUPLE)},
        **{_REWARD_PREFIX + name: value for name, value in rollout.rewards.items()},
    }


def _from_row(row: Mapping[str, Any]) -> Rollout:
    messages = None if row["messages"] is None else tuple(json.loads(row["messages"]))
    rewards = {
        name.removeprefix(_REWARD_PREFIX): value for name, value in row.items() if name.startswith(_REWARD_PREFIX)
    }
    fields: dict[str, Any] = {name: row[name] for name in _AS_IS}
    fields |= {name: None if row.get(name) is None else tuple(row[name]) for name in _AS_TUPLE}
    return Rollout(messages=messages, rewards=rewards, **fields)

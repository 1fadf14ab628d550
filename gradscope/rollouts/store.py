"""Our own Parquet file of rollouts: one a step, written whole, byte-equal for equal content, read back unchanged.

Log-probabilities are kept in float32, the precision they are computed in; all other numbers in float64.
Shapes: T tokens of a completion.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.errors import InputError
from gradscope.outside.limits import open_file, read_whole
from gradscope.outside.plain_json import parse_json
from gradscope.results.envelope import sha256_of
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run_folder import SetAside, rollouts_path, step_path
from gradscope.writing import atomic_write

SCHEMA_VERSION = 1
_VERSION_KEY = b"gradscope.rollouts"
_REWARD_PREFIX = "reward/"
_COPY = "Copy the file again from where the run was made."
_NAME = re.compile(r"step_([0-9]+)\.parquet(?:\.sha256)?")

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
    path, data = step_path(run, step), sink.getvalue()
    if force:  # of a step that is made again: between these files no checksum is better than that of another content
        checksum_path(path).unlink(missing_ok=True)
    atomic_write(path, data, force=force)
    atomic_write(checksum_path(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n", force=force)
    return path


def checksum_path(path: Path) -> Path:
    """The checksum of a file of rollouts, beside it, as ``sha256sum`` writes it."""
    return path.with_name(f"{path.name}.sha256")


def step_files(run: Path) -> tuple[Path, ...]:
    """The files of rollouts that a run has, by step."""
    return tuple(file for _, file in sorted(_numbered(rollouts_path(run).glob("step_*.parquet"))))


def steps_written(run: Path) -> tuple[int, ...]:
    """The steps whose rollouts were written, by their checksums, although the files may be gone, ascending."""
    return tuple(sorted(step for step, _ in _numbered(rollouts_path(run).glob("step_*.parquet.sha256"))))


def _numbered(files: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    named = ((_NAME.fullmatch(file.name), file) for file in files)
    return ((int(name[1]), file) for name, file in named if name)


def read_steps(run: Path, quarantine: SetAside | None = None) -> tuple[RolloutGroup, ...]:
    """All groups of a run, by step, then in the order they were written.

    Args:
        run: The run's folder.
        quarantine: Takes rewards that are none, and files that cannot be used; None: such a file is an error.

    Returns:
        The groups.

    Raises:
        InputError: A file is damaged, and there is no ``quarantine``.
    """
    groups: list[RolloutGroup] = []
    for path in step_files(run):
        try:
            groups += read_step_rollouts(path, quarantine)
        except InputError as error:
            if quarantine is None:
                raise
            quarantine.lose(error)
    return tuple(groups)


def read_step_rollouts(path: Path, quarantine: SetAside | None = None) -> tuple[RolloutGroup, ...]:
    """One file of rollouts, which :func:`write_step_rollouts` wrote.

    Args:
        path: The file.
        quarantine: Takes rewards that are missing or not finite, whose rollouts stay in their groups; None: nobody
            asks.

    Returns:
        Its groups in order.

    Raises:
        InputError: The file is damaged, not ours, of another version of the schema, or not what its checksum says.
    """
    _require_checksum(path)
    try:
        with open_file(path) as stream:
            table = pq.read_table(stream)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable Parquet file: {error}.", hint=_COPY) from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY)
    if version != str(SCHEMA_VERSION).encode():
        raise InputError(
            f"{path} is not a rollout file of schema version {SCHEMA_VERSION}.",
            hint="Use the gradscope that wrote the run.",
        )
    _require_columns(path, table.schema)
    rows = ((f"{path}:{number}", row) for number, row in enumerate(table.to_pylist(), start=1))
    groups = groupby(rows, key=lambda row: (row[1]["step"], row[1]["group_id"], row[1]["prompt_id"]))
    try:
        found = tuple(
            RolloutGroup(
                step=step,
                group_id=group,
                prompt_id=prompt,
                rollouts=tuple(_from_row(row, location, quarantine) for location, row in members),
            )
            for (step, group, prompt), members in groups
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: a row is none of a rollout ({error}).", hint=_COPY) from error
    _require_groups(path, found)
    return found


def _require_checksum(path: Path) -> None:
    file = checksum_path(path)
    try:
        written = read_whole(file).split()[:1]
    except OSError:  # a run of an older version, or one that ended between its two files
        return
    if path.is_file() and written != [sha256_of(path).encode()]:
        raise _damaged(path, f"its content is not what {file.name} was written for")


def _require_columns(path: Path, schema: pa.Schema) -> None:
    rewards = ((name, pa.float64()) for name in schema.names if name.startswith(_REWARD_PREFIX))
    trainers = (_WHERE_LOGGED,) if _WHERE_LOGGED[0] in schema.names else ()
    for name, kind in (*_BEFORE_REWARDS, *rewards, *_AFTER_REWARDS, *trainers):
        if schema.names.count(name) != 1:
            raise _damaged(path, f"the column {name} is not there once")
        if schema.field(name).type != kind:
            raise _damaged(path, f"the column {name} holds {schema.field(name).type} and not {kind}")


def _require_groups(path: Path, groups: Sequence[RolloutGroup]) -> None:
    step = int(path.stem.removeprefix("step_"))
    if not groups:
        raise _damaged(path, "it has no rows")
    if any(group.step != step for group in groups):
        raise _damaged(path, "it has rows of another step than its name says")
    if len({group.group_id for group in groups}) < len(groups):
        raise _damaged(path, "rows of one group do not stand together")
    if any(len({rollout.sample for rollout in group.rollouts}) < group.size for group in groups):
        raise _damaged(path, "a rollout stands there twice")


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged: {why}.", hint=_COPY)


def _to_row(group: RolloutGroup, rollout: Rollout) -> dict[str, Any]:
    messages = None if rollout.messages is None else json.dumps([dict(message) for message in rollout.messages])
    return {
        "step": group.step,
        "prompt_id": group.prompt_id,
        "messages": messages,
        **{name: getattr(rollout, name) for name in (*_AS_IS, *_AS_TUPLE)},
        **{_REWARD_PREFIX + name: value for name, value in rollout.rewards.items()},
    }


def _from_row(row: Mapping[str, Any], location: str, quarantine: SetAside | None) -> Rollout:
    messages = None if row["messages"] is None else tuple(parse_json(row["messages"]))
    rewards = {
        name.removeprefix(_REWARD_PREFIX): None if value is None or not math.isfinite(value) else value
        for name, value in row.items()
        if name.startswith(_REWARD_PREFIX)
    }
    fields: dict[str, Any] = {name: row[name] for name in _AS_IS}
    if row["reward"] is None or not math.isfinite(row["reward"]):
        fields["reward"] = None
        if quarantine is not None:
            quarantine.add(f"the reward is {'null' if row['reward'] is None else 'not finite'}", location)
    fields |= {name: None if row.get(name) is None else tuple(row[name]) for name in _AS_TUPLE}
    return Rollout(messages=messages, rewards=rewards, **fields)

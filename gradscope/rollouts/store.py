"""Our own Parquet files of rollouts: written atomically, byte-equal for equal content, read back unchanged.

Each finished step is a file of its own, so a crash loses one at most. Twenty finished steps are joined into one file,
so that a long run does not leave thousands; steps that would make a large file stay apart.

Log-probabilities are stored in float32, the precision they are computed in; all other numbers in float64.
Shapes: T tokens of a completion.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradscope.errors import InputError
from gradscope.outside.limits import open_file, read_limited
from gradscope.outside.plain_json import parse_json
from gradscope.results.envelope import sha256_of
from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run_folder import SetAside, rollouts_path, step_path
from gradscope.writing import atomic_write

SCHEMA_VERSION = 1
_VERSION_KEY = b"gradscope.rollouts"
_REWARD_PREFIX = "reward/"
_COPY = "Copy the file again from where the run was made."
_NAME = re.compile(r"(?:step_([0-9]+)|steps_([0-9]+)-([0-9]+))\.parquet")
_CHECKSUM = ".sha256"
STEPS_A_FILE = 20
_MAX_BYTES = 64 << 20  # of a joined file: large steps are not copied a second time for the sake of fewer files
_ROWS_AT_ONCE = 1024  # rows as Python objects at once: all rows of a file would take several times its memory

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
_TRAINER_LOGPROBS = ("trainer_logprobs", pa.list_(pa.float32()))  # a column of files where at least one rollout has it
_TUPLE_FIELDS = (
    *("prompt_ids", "completion_ids", "token_rewards", "token_advantages", "logprobs", "mask"),
    "trainer_logprobs",
)
_PLAIN_FIELDS = ("group_id", "sample", "row", "prompt", "completion", "reward", "advantage", "status")


def write_step_rollouts(run: Path, step: int, groups: Sequence[RolloutGroup]) -> Path:
    """Write one step's rollouts, and join the files of twenty steps once all of them are done.

    All rollouts name the same reward functions. A step that is there, as one repeated after a resume, is replaced.

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
    has_trainers = any(rollout.trainer_logprobs is not None for group in groups for rollout in group.rollouts)
    varying = [*(_REWARD_PREFIX + name for name in names), *([_TRAINER_LOGPROBS[0]] if has_trainers else [])]
    rows = [
        {
            "step": group.step,
            "prompt_id": group.prompt_id,
            "messages": None if rollout.messages is None else json.dumps(list(map(dict, rollout.messages))),
            **{name: getattr(rollout, name) for name in (*_PLAIN_FIELDS, *_TUPLE_FIELDS)},
            **{_REWARD_PREFIX + name: value for name, value in rollout.rewards.items()},
        }
        for group in groups
        for rollout in group.rollouts
    ]
    path = step_path(run, step)
    for file in step_files(run):
        if file != path and step in steps_in_file(file):
            _split(file, run)
    _write(path, [pa.Table.from_pylist(rows, schema=_schema(varying))])
    return _join(run, step) or path


def _schema(present: Collection[str]) -> pa.Schema:
    """The schema of a file, by its columns: which rewards it has, and whether the trainer's log-probabilities."""
    rewards = ((name, pa.float64()) for name in present if name.startswith(_REWARD_PREFIX))
    trainers = (_TRAINER_LOGPROBS,) if _TRAINER_LOGPROBS[0] in present else ()
    fields = [*_BEFORE_REWARDS, *rewards, *_AFTER_REWARDS, *trainers]
    return pa.schema(fields, metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


def _write(path: Path, tables: Sequence[pa.Table]) -> None:
    """Write a file of these tables, and its checksum, in place of what is there."""
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    sink = io.BytesIO()
    with pq.ParquetWriter(sink, tables[0].schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    data = sink.getvalue()
    # if the process dies between the two writes, no checksum is better than that of the old content
    checksum_path(path).unlink(missing_ok=True)
    atomic_write(path, data, force=True)
    atomic_write(checksum_path(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n", force=True)


def _join(run: Path, step: int) -> Path | None:
    """Join the files of the last twenty finished steps up to this one."""
    last = step - step % STEPS_A_FILE
    first = last - STEPS_A_FILE + 1
    files = [step_path(run, number) for number in range(first, last + 1) if step_path(run, number).is_file()]
    if len(files) < 2 or sum(file.stat().st_size for file in files) > _MAX_BYTES:
        return None
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    try:
        with ExitStack() as stack:
            tables = [stack.enter_context(pq.ParquetFile(file)).read() for file in files]
    except (pa.ArrowException, OSError):  # a reader reports a damaged file; training goes on
        return None
    if any(table.schema != tables[0].schema for table in tables):
        return None
    joined = rollouts_path(run) / f"steps_{first:05d}-{last:05d}.parquet"
    _write(joined, tables)
    for file in files:
        _remove(file)
    return joined if step == last else None


def _split(file: Path, run: Path) -> None:
    import pyarrow.parquet as pq  # 30 ms that no other log needs

    with pq.ParquetFile(file) as opened:
        for index in range(opened.num_row_groups):
            rows = opened.read_row_group(index).to_pylist()
            schema = _schema(opened.schema_arrow.names)  # the file names the items of lists otherwise
            table = pa.Table.from_pylist(rows, schema=schema)
            _write(step_path(run, table["step"][0].as_py()), [table])
    _remove(file)


def _remove(file: Path) -> None:
    file.unlink()
    checksum_path(file).unlink(missing_ok=True)


def drop_steps_after(run: Path, step: int) -> None:
    """Remove the rollouts of all later steps, and files that a crash left next to a joined one."""
    for file in set(filter(steps_in_file, rollouts_path(run).glob("step*.parquet"))) - set(step_files(run)):
        _remove(file)
    for file in step_files(run):
        if step in steps_in_file(file)[:-1]:
            _split(file, run)
    for file in step_files(run):
        if steps_in_file(file)[0] > step:
            _remove(file)


def checksum_path(path: Path) -> Path:
    """The checksum file of a file of rollouts, in the format of ``sha256sum``."""
    return path.with_name(f"{path.name}{_CHECKSUM}")


def steps_in_file(path: Path) -> range:
    """The steps in a file of rollouts, by its name; empty for any other file."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        return range(0)
    first, last = int(name[1] or name[2]), int(name[1] or name[3])
    return range(first, last + 1)


def step_files(run: Path) -> tuple[Path, ...]:
    """A run's files of rollouts, by step; files of steps that a crash left next to their joined file do not count."""
    files = sorted(
        filter(steps_in_file, rollouts_path(run).glob("step*.parquet")), key=lambda file: steps_in_file(file)[0]
    )
    joined = {step for file in files if len(steps_in_file(file)) > 1 for step in steps_in_file(file)}
    return tuple(file for file in files if len(steps_in_file(file)) > 1 or steps_in_file(file)[0] not in joined)


def files_written(run: Path) -> tuple[Path, ...]:
    """The files of rollouts that were once written, by their checksums; they may be gone."""
    checksums = rollouts_path(run).glob(f"step*.parquet{_CHECKSUM}")
    files = (file.with_suffix("") for file in checksums)
    return tuple(sorted(filter(steps_in_file, files), key=lambda file: steps_in_file(file)[0]))


def read_steps(run: Path, quarantine: SetAside | None = None) -> tuple[RolloutGroup, ...]:
    """All groups of a run, by step, then in the order written; without a quarantine a damaged file is an InputError."""
    groups: list[RolloutGroup] = []
    for path in step_files(run):
        try:
            groups += read_step_rollouts(path, quarantine)
        except InputError as error:
            if quarantine is None:
                raise
            quarantine.add_unreadable(error)
    return tuple(groups)


def read_step_rollouts(path: Path, quarantine: SetAside | None = None) -> tuple[RolloutGroup, ...]:
    """Read a file that :func:`write_step_rollouts` wrote; rollouts without a finite reward stay in their groups.

    Raises:
        InputError: The file is damaged, not ours, of another version of the schema, or does not match its checksum.
    """
    import pyarrow.parquet as pq  # 30 ms that no other log needs

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
    batches = table.to_batches(max_chunksize=_ROWS_AT_ONCE)
    numbered = enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    rows = ((f"{path}:{number}", row) for number, row in numbered)
    groups = groupby(rows, key=lambda row: (row[1]["step"], row[1]["group_id"], row[1]["prompt_id"]))
    try:
        rollout_groups = tuple(
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
    _require_groups(path, rollout_groups)
    return rollout_groups


def _require_checksum(path: Path) -> None:
    file = checksum_path(path)
    try:
        written = read_limited(file).split()[:1]
    except OSError:  # a run of an older version, or one that ended between its two files
        return
    if path.is_file() and written != [sha256_of(path).encode()]:
        raise _damaged(path, f"its content is not what {file.name} was written for")


def _require_columns(path: Path, schema: pa.Schema) -> None:
    for field in _schema(schema.names):
        if schema.names.count(field.name) != 1:
            raise _damaged(path, f"the column {field.name} is not there once")
        if (kind := schema.field(field.name).type) != field.type:
            raise _damaged(path, f"the column {field.name} holds {kind} and not {field.type}")


def _require_groups(path: Path, groups: Sequence[RolloutGroup]) -> None:
    steps = steps_in_file(path)
    if not groups:
        raise _damaged(path, "it has no rows")
    if any(group.step not in steps for group in groups):
        raise _damaged(path, "it has rows of another step than its name says")
    if len({group.group_id for group in groups}) < len(groups):
        raise _damaged(path, "rows of one group do not stand together")
    if any(len({rollout.sample for rollout in group.rollouts}) < group.size for group in groups):
        raise _damaged(path, "a rollout stands there twice")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged: {reason}.", hint=_COPY)


def _from_row(row: Mapping[str, Any], location: str, quarantine: SetAside | None) -> Rollout:
    messages = None if row["messages"] is None else tuple(parse_json(row["messages"]))
    rewards = {
        name.removeprefix(_REWARD_PREFIX): None if value is None or not math.isfinite(value) else value
        for name, value in row.items()
        if name.startswith(_REWARD_PREFIX)
    }
    fields: dict[str, Any] = {name: row[name] for name in _PLAIN_FIELDS}
    flaw = None
    if not math.isfinite(row["advantage"] or 0.0):
        flaw, fields["advantage"] = BROKEN_ADVANTAGE, None
    if row["reward"] is None or not math.isfinite(row["reward"]):
        flaw, fields["reward"] = f"the reward is {'null' if row['reward'] is None else 'not finite'}", None
    if flaw is not None and quarantine is not None:
        quarantine.add(flaw, location)
    fields |= {name: None if row.get(name) is None else tuple(row[name]) for name in _TUPLE_FIELDS}
    return Rollout(messages=messages, rewards=rewards, **fields)

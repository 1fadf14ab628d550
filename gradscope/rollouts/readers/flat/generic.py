"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.columns import list_names, resolve_columns, reward_columns, sample_column
from gradscope.rollouts.readers.flat.duckdb_scan import Keys
from gradscope.rollouts.readers.flat.reduction import is_large, reduce_files, to_groups
from gradscope.rollouts.readers.parsing.assemble import assemble_groups, peek
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.format import Format
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.nested_cells import generation_seconds, whole_number
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import (
    ABSENT,
    digest,
    finite_or_none,
    is_not_finite,
    parse_messages,
    parse_reward,
    text_of,
)
from gradscope.rollouts.readers.parsing.tables import Row, expand, is_untyped, read_rows, suffix_of
from gradscope.rollouts.run import Run

_REDUCED = "The log is large and was reduced to its rewards: texts were not kept."


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with a reward and something to group by, under usual names."""
    columns = resolve_columns(columns_in(peek(request.path)), request.columns)
    return columns.reward is not None and _key(columns) is not None


def _read(request: ReadRequest) -> Run:
    """Read a log with a row a rollout."""
    return read_flat(request, format="generic", with_steps=True)


def read_flat(request: ReadRequest, *, format: str, with_steps: bool) -> Run:
    """Read rows that are rollouts.

    Args:
        request: What to read.
        format: The format's name.
        with_steps: Whether a column of steps splits groups; without, all rows of a prompt are one group.

    Returns:
        The run.
    """
    first = peek(request.path)
    names = columns_in(first)
    columns = _require(resolve_columns(names, request.columns), names, request.path)
    columns = columns if with_steps else dataclasses.replace(columns, step=None)
    quarantine = QuarantineLog()
    files = expand(request.path)
    rewards = reward_columns(names, columns.reward or "")
    sample = sample_column(first, columns)

    def read_file(file: Path) -> Iterator[Record]:
        return _records(read_rows(file, quarantine), columns, rewards, sample, quarantine, is_untyped(file))

    # A reduction could not tell a row that repeats another.
    reduced = request.rewards_only and sample is None and is_large(files)
    if reduced:
        keys = Keys.of(columns, rewards)
        groups = to_groups(reduce_files(files, keys, read_file, request.progress), keys.rewards)
    else:
        groups = build_groups((record for file in files for record in read_file(file)), quarantine)
    return assemble_groups(
        request,
        groups=groups,
        quarantine=quarantine,
        format=format,
        recognized=_describe(files),
        inferred=_inferred(columns, request.columns, sample),
        missing=(_REDUCED,) if reduced else (),
    )


def columns_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every key of some rows, in order of first appearance."""
    return tuple({name: None for row in rows for name in row})


def _key(columns: ColumnNames) -> str | None:
    return columns.group or columns.prompt_id or columns.prompt


def _require(columns: ColumnNames, names: tuple[str, ...], path: Path) -> ColumnNames:
    if columns.reward is None:
        raise InputError(
            f"{path} has no column that is known to be a reward; its columns are {list_names(names)}.",
            hint="Name it: --reward-column NAME.",
        )
    if _key(columns) is None:
        raise InputError(
            f"{path} has no column to group rollouts by; its columns are {list_names(names)}.",
            hint="Name one: --group-column NAME, or --prompt-column NAME.",
        )
    return columns


def _records(
    rows: Iterable[Row],
    columns: ColumnNames,
    rewards: tuple[str, ...],
    sample: str | None,
    quarantine: QuarantineLog,
    from_text: bool,
) -> Iterator[Record]:
    for location, row in rows:
        reward = parse_reward(row.get(columns.reward or "", ABSENT), from_text=from_text)
        step = 0 if columns.step is None else whole_number(row.get(columns.step))
        key = row.get(_key(columns) or "")
        if step is None:
            quarantine.add("the step is not a whole number", location)
        elif key is None or key == "":
            quarantine.add(f"{_key(columns)} is missing", location)
        else:
            further = {name: _number(parse_reward(row.get(name), from_text=from_text)) for name in rewards}
            if isinstance(reward, str):
                quarantine.add(reward, location)
            elif is_not_finite(row.get(columns.advantage or "")):
                quarantine.add(BROKEN_ADVANTAGE, location)
            record = _record(row, columns, step, _number(reward), further)
            sample_id = None if sample is None else text_of(row.get(sample)) or None
            yield dataclasses.replace(record, sample_id=sample_id, location=location) if sample_id else record


def _record(
    row: Mapping[str, Any], columns: ColumnNames, step: int, reward: float | None, rewards: Mapping[str, float | None]
) -> Record:
    prompt = row.get(columns.prompt or "")
    by_prompt = columns.group is None and columns.prompt_id is None
    prompt_id = _prompt_id(row, columns)
    return Record(
        step=step,
        group=prompt_id if by_prompt else text_of(row[_key(columns) or ""]),
        prompt_id=prompt_id,
        prompt=text_of(prompt),
        completion=text_of(row.get(columns.completion or "")),
        reward=reward,
        rewards=rewards,
        messages=parse_messages(prompt),
        advantage=finite_or_none(row.get(columns.advantage or "")),
        seconds=generation_seconds(row),
    )


def _prompt_id(row: Mapping[str, Any], columns: ColumnNames) -> str:
    if columns.prompt_id is not None and row.get(columns.prompt_id) is not None:
        return text_of(row[columns.prompt_id])
    if columns.prompt is not None and row.get(columns.prompt) is not None:
        prompt = row[columns.prompt]
        return digest(parse_messages(prompt) or text_of(prompt))
    return text_of(row[_key(columns) or ""])


def _number(reward: float | str) -> float | None:
    return None if isinstance(reward, str) else reward


def _describe(files: tuple[Path, ...]) -> str:
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    return f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"


def _inferred(columns: ColumnNames, given: ColumnNames, sample: str | None) -> Iterator[str]:
    roles = [("reward", columns.reward, given.reward), ("step", columns.step, given.step)]
    guessed = [f"{role} from {name!r}" for role, name, named in roles if name is not None and named is None]
    key = _key(columns)
    if key not in {given.group, given.prompt_id, given.prompt}:
        guessed.append(f"groups from {key!r}")
    if guessed:
        yield f"Columns were guessed by their names: {', '.join(guessed)}."
    if sample is not None:
        yield f"Rollouts of a group are told apart by {sample!r}: a row of the same sample again does not count."
    if key == columns.prompt:
        yield "Rollouts were grouped by the prompt's text; two groups of one prompt at one step would merge."


FORMAT = Format(
    name="generic",
    looks_for="rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"columns"}),
)

"""Any log with a row a rollout: JSON lines, JSON, Parquet or CSV with a reward and something to group by."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.rollouts.arrays import to_filled, to_floats, to_indices, to_strings
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.columns import (
    FlatColumns,
    flat_records,
    key_of,
    list_names,
    prompt_text_id,
    resolve_columns,
    reward_columns,
    sample_column,
    summed_columns,
)
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.cells import (
    ENVIRONMENTS,
    generation_seconds,
    in_environment,
    parse_reward,
    text_of,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog, counted
from gradscope.rollouts.readers.parsing.records import Record, assemble_groups, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import Row, expand, is_untyped, read_rows, suffix_of
from gradscope.rollouts.readers.reduction.columns import (
    REWARD,
    Columns,
    Keys,
    LineColumns,
    Name,
    Number,
    TableColumns,
    digest_of,
    digests_of,
    id_texts,
    json_of,
    jsons_of,
    numbers_of,
    sample_hashes,
    step_numbers,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.run import Run

_TIMES = ("generation_seconds", "timing")
"""What ``generation_seconds`` looks at."""
_EMPTY = (b"null", b'""')


def column_log(
    files: Sequence[Path], columns: FlatColumns, present: Sequence[str], quarantine: QuarantineLog
) -> ColumnLog:
    """The columns of a log.

    Args:
        files: What it consists of, in order.
        columns: What their columns are.
        present: All names of columns.
        quarantine: Takes what is set aside.

    Returns:
        The log.
    """
    lines = _line_columns(columns, [name for name in _TIMES if name in present], keys := Keys())
    typed, untyped = (_table_columns(columns, from_text=from_text) for from_text in (False, True))

    def declared(file: Path) -> LineColumns | TableColumns | None:
        match suffix_of(file):
            case ".json":
                return None
            case ".parquet":
                return typed
            case ".csv":
                return untyped
            case _:
                return lines

    def records(file: Path, rows: Iterable[Row], quarantine: QuarantineLog) -> Iterator[Record]:
        return flat_records(rows, columns, quarantine, from_text=is_untyped(file))

    return ColumnLog(
        files=files,
        declared=declared,
        rows=read_rows,
        records=records,
        quarantine=quarantine,
        keys=(*keys, *columns.rewards),
    )


def _line_columns(columns: FlatColumns, times: Sequence[str], keys: Keys) -> LineColumns | None:
    names = columns.names
    reward = keys(names.reward or "", Number)
    step = None if names.step is None else keys(names.step, Name | float)
    group = keys(columns.key, Raw | UnsetType if columns.by_prompt else Name)
    prompt_id = group if names.prompt_id is None else keys(names.prompt_id, Name)
    sample = None if columns.sample is None else keys(columns.sample, Name | None | UnsetType)
    further = {name: keys(name, Any | UnsetType) for name in columns.rewards if name != names.reward}
    seconds = [(name, keys(name, Any | UnsetType)) for name in times]
    text = None if names.prompt is None else keys(names.prompt, Raw | UnsetType)
    advantage = None if names.advantage is None else keys(names.advantage, Any | UnsetType)
    environment = None if columns.environment is None else keys(columns.environment, Any | UnsetType)

    def take(rows: Sequence[Any], _: Path) -> Columns:
        rewards = numbers_of(list(map(reward, rows)))
        numbers: dict[str, NDArray[Any]] = {"reward": rewards}
        for name in columns.rewards:
            numbers[REWARD + name] = rewards if name == names.reward else numbers_of(list(map(further[name], rows)))
        if seconds:
            cells = ({name: get(row) for name, get in seconds} for row in rows)
            numbers["seconds"] = to_floats(map(generation_seconds, cells))
        if advantage is not None:
            numbers["advantage"] = numbers_of(list(map(advantage, rows)))
        if sample is not None:
            numbers["sample"] = sample_hashes(_sample_id(cell) for cell in map(sample, rows))
        groups, ids = list(map(group, rows)), _PromptIds()

        def prompt_of(at: int) -> str:
            prompt = b"null" if text is None or names.prompt_id is not None else json_of(text(rows[at]))
            name = text_of(prompt_id(rows[at])) if prompt == b"null" else ids[prompt] or prompt_text_id("")
            return name if environment is None else in_environment(environment(rows[at]), name)

        return Columns(
            step=np.zeros(len(rows), dtype=np.int64) if step is None else step_numbers(list(map(step, rows))),
            group=ids.of(jsons_of(groups)) if columns.by_prompt else id_texts(groups),
            prompts=lambda some: list(map(prompt_of, some)),
            texts=None if text is None else lambda some: [text_of(json.loads(json_of(text(rows[at])))) for at in some],
            numbers=numbers,
        )

    return LineColumns(row=keys.struct(), take=take) if keys.are_plain else None


class _PromptIds(dict[bytes, str]):
    """The ids of prompts by their JSON texts; "" for one without text."""

    def of(self, texts: Sequence[bytes]) -> list[str]:
        """Those of some rows, [R]."""
        plain = [text for text in dict.fromkeys(texts) if text.startswith(b'"') and text not in _EMPTY]
        self.update(zip(plain, digests_of([(text,) for text in plain]), strict=True))
        return list(map(self.__getitem__, texts))

    def __missing__(self, text: bytes) -> str:
        is_text = text.startswith(b'"')
        self[text] = "" if text in _EMPTY else digest_of(text) if is_text else prompt_text_id(json.loads(text))
        return self[text]


def _sample_id(cell: Any) -> str | None:
    return text_of(None if cell is UNSET else cell) or None


def _table_columns(columns: FlatColumns, *, from_text: bool) -> TableColumns:
    names = columns.names
    roles = (names.reward, names.step, columns.key, names.prompt_id, names.prompt, names.advantage)
    further = (columns.sample, columns.environment, *columns.rewards, *_TIMES)
    wanted = dict.fromkeys(name for name in (*roles, *further) if name is not None)

    def take(batch: pa.RecordBatch) -> Columns:
        size = len(batch)
        cells = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}

        def column(name: str | None) -> pa.Array:
            return cells[name] if name in cells else pa.nulls(size)

        numbers: dict[str, NDArray[Any]] = {"reward": _numbers(column(names.reward), from_text=from_text)}
        for name in columns.rewards:
            is_main = name == names.reward
            numbers[REWARD + name] = numbers["reward"] if is_main else _numbers(column(name), from_text=from_text)
        if not from_text and (times := [name for name in _TIMES if name in cells]):
            rows = ({name: cells[name][at].as_py() for name in times} for at in range(size))
            numbers["seconds"] = to_floats(map(generation_seconds, rows))
        if names.advantage is not None and not from_text:
            numbers["advantage"] = _numbers(column(names.advantage), from_text=False)
        if columns.sample is not None:
            numbers["sample"] = sample_hashes(_sample_id(cell) for cell in column(columns.sample).to_pylist())
        group = _mapped(column(columns.key), prompt_text_id if columns.by_prompt else text_of)

        def prompts(some: list[int]) -> list[str]:
            rows = to_indices(np.array(some, dtype=np.int64))
            ids: list[str] = group.take(rows).to_pylist()
            known = () if columns.by_prompt else ((names.prompt, prompt_text_id), (names.prompt_id, text_of))
            for name, id_of in known:
                found = column(name).take(rows).to_pylist()
                ids = [one if cell is None else id_of(cell) for one, cell in zip(ids, found, strict=True)]
            environments = column(columns.environment).take(rows).to_pylist()
            return list(map(in_environment, environments, ids))

        return Columns(
            step=np.zeros(size, dtype=np.int64) if names.step is None else _steps(column(names.step)),
            group=group,
            prompts=prompts,
            texts=lambda some: list(map(text_of, column(names.prompt).take(to_indices(np.array(some))).to_pylist())),
            numbers=numbers,
            is_odd=_is_broken(column(names.advantage)),
        )

    return TableColumns(names=tuple(wanted), take=take)


def _distinct(column: pa.Array) -> tuple[list[Any], NDArray[np.int64]]:
    """The different cells of a column, and which of them each row has; -1 for null, [R]."""
    if not pa.types.is_dictionary(column.type):
        if pa.types.is_nested(column.type):
            cells = column.to_pylist()
            return cells, np.where([cell is None for cell in cells], -1, np.arange(len(cells)))
        column = column.dictionary_encode()
    return column.dictionary.to_pylist(), to_filled(column.indices.cast(pa.int64()), -1)


def _mapped(column: pa.Array, name_of: Callable[[Any], str]) -> pa.Array:
    """Names of cells; "" for null and for an empty text, [R]."""
    cells, places = _distinct(column)
    names = [name_of(cell) if cell not in (None, "") else "" for cell in cells]
    return to_strings([*names, ""]).take(to_indices(np.where(places < 0, len(names), places)))


def _numbers(column: pa.Array, *, from_text: bool) -> NDArray[np.float64]:
    """Numbers as ``parse_reward`` tells them; NaN where one is none, [R]."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found = to_filled(column.cast(pa.float64(), safe=False), math.nan)
        return np.where(np.isfinite(found), found, math.nan)
    if from_text and pa.types.is_string(kind):
        try:
            return _numbers(column.cast(pa.float64()), from_text=False)
        except pa.ArrowInvalid:
            pass
    cells, places = _distinct(column)
    parsed = [parse_reward(cell, from_text=from_text) for cell in cells]
    found = np.array([math.nan if isinstance(number, str) else number for number in (*parsed, math.nan)])
    return np.asarray(found[places])


def _steps(column: pa.Array) -> NDArray[np.int64]:
    """Steps as ``whole_number`` tells them; -1 where one is none, [R]."""
    cells, places = _distinct(column)
    return np.asarray(np.append(step_numbers(cells), -1)[places])


def _is_broken(column: pa.Array) -> NDArray[np.bool_] | None:
    """Where an advantage is a number but not a finite one, [R]."""
    if not pa.types.is_floating(column.type):
        return None
    found = to_filled(column.cast(pa.float64()), 0.0)
    return np.asarray(~np.isfinite(found))


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path holds rows with a reward and something to group by, under usual names."""
    columns = resolve_columns(columns_in(peek(request.path)), request.columns)
    return columns.reward is not None and key_of(columns) is not None


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
    files = expand(request.path)
    quarantine = WatchedLog(request.progress, files)
    sample = sample_column(first, columns)
    named = reward_columns(names, columns.reward or "")
    total, terms = _terms(first, columns, [*named, *(name for name in names if name not in named)])
    roles = set(dataclasses.astuple(columns))
    environment = next((name for name in ENVIRONMENTS if name in names and name not in roles), None)
    rewards = tuple(dict.fromkeys([*named, *terms]))
    flat = FlatColumns(names=columns, rewards=rewards, sample=sample, environment=environment)
    return assemble_groups(
        request,
        groups=reduced_groups(column_log(files, flat, names, quarantine), request) or (),
        quarantine=quarantine,
        format=format,
        recognized=_describe(files),
        inferred=[*_inferred(columns, request.columns, sample), *_sum_inferred(total, terms)],
    )


def columns_in(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every key of some rows, in order of first appearance."""
    return tuple({name: None for row in rows for name in row})


def _require(columns: ColumnNames, names: tuple[str, ...], path: Path) -> ColumnNames:
    if columns.reward is None:
        raise InputError(
            f"{path} has no column that is known to be a reward; its columns are {list_names(names)}.",
            hint="Name it: --reward-column NAME.",
        )
    if key_of(columns) is None:
        raise InputError(
            f"{path} has no column to group rollouts by; its columns are {list_names(names)}.",
            hint="Name one: --group-column NAME, or --prompt-column NAME.",
        )
    return columns


def _describe(files: tuple[Path, ...]) -> str:
    kinds = sorted({(suffix_of(file) or ".jsonl").removeprefix(".") for file in files})
    return f"{' and '.join(kinds)} with a row a rollout, {counted(len(files), 'file')}"


def _inferred(columns: ColumnNames, given: ColumnNames, sample: str | None) -> Iterator[str]:
    roles = [("reward", columns.reward, given.reward), ("step", columns.step, given.step)]
    guessed = [f"{role} from {name!r}" for role, name, named in roles if name is not None and named is None]
    key = key_of(columns)
    if key not in {given.group, given.prompt_id, given.prompt}:
        guessed.append(f"groups from {key!r}")
    if guessed:
        yield f"Columns were guessed by their names: {', '.join(guessed)}."
    if sample is not None:
        yield f"Rollouts of a group are told apart by {sample!r}: a row of the same sample again does not count."
    if key == columns.prompt:
        yield "Rollouts were grouped by the prompt's text; two groups of one prompt at one step would merge."


def _terms(
    rows: Sequence[Mapping[str, Any]], columns: ColumnNames, names: Sequence[str]
) -> tuple[str | None, Mapping[str, float]]:
    """A reward that is a weighted sum of columns, and these: the reward, or one of which the reward is a part."""
    usual = resolve_columns(names, ColumnNames()).reward
    if usual not in (None, columns.reward):
        terms = summed_columns(rows, dataclasses.replace(columns, reward=usual), names)
        if columns.reward in terms:
            return usual, terms
    return columns.reward, summed_columns(rows, columns, names)


def _sum_inferred(total: str | None, terms: Mapping[str, float]) -> Iterator[str]:
    if terms:
        text = " + ".join(f"{weight:g} {name}" for name, weight in terms.items()).replace("+ -", "- ")
        yield f"{total!r} is the weighted sum of other columns, its reward functions: {text}."


FORMAT = Format(
    name="generic",
    looks_for="rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"columns"}),
)

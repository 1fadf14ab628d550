"""A log with a row a rollout as columns, for a reduction."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_filled, to_floats, to_indices, to_strings
from gradscope.rollouts.readers.flat.columns import FlatColumns, flat_records, prompt_text_id
from gradscope.rollouts.readers.parsing.cells import generation_seconds, in_environment, parse_reward, text_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.parsing.tables import Row, is_untyped, read_rows, suffix_of
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
from gradscope.rollouts.readers.reduction.log import ColumnLog

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

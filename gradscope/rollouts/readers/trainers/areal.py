"""AReaL's dumps of trajectories: a folder for each version of the weights, a file a task, a row a sample."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Raw, UnsetType

from gradscope.rollouts.readers.format import LogColumns, LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import required_whole, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    Name,
    Number,
    digest_of,
    id_texts,
    json_of,
    numbers_of,
    sample_hashes,
    step_numbers,
)

_BY_TASK = (
    "Samples of one task are a group, at the version of the weights that finished it (tail_version); asynchronous "
    "training may use it at a later step, which lags leave out, or not at all where should_accept_fn rejects it."
)
_STALE = "Some samples were begun by an earlier version of the weights than finished them (head_version)."
_EMPTY = "AReaL writes no sample without completion tokens, so that such a sample is missing from its group."


def _records(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    step = required_whole(cells.get("tail_version"), "tail_version")
    if text_of(cells.get("task_id")) == "":
        raise UnusableRowError("task_id is missing")
    begun = whole_number(cells.get("head_version"))
    if begun not in (None, step):
        row.reading.noted.add(_STALE)
    index = whole_number(cells.get("sample_idx"))
    yield Record(
        step=step,
        group=text_of(cells["task_id"]),
        prompt_id=digest(cells.get("prompt")),
        prompt=text_of(cells.get("prompt")),
        completion=text_of(cells.get("completion")),
        reward=row.reward(cells.get("reward", ABSENT)),
        sample_id=None if index is None else str(index),
        location=row.location,
        policy_versions=None if begun is None or not 0 <= begun <= step else (begun, step),
    )


def _line_columns() -> LineColumns:
    keys = Keys()
    whole = Name | float | None | UnsetType
    finished, begun, index = keys("tail_version", Name | float), keys("head_version", whole), keys("sample_idx", whole)
    task, reward, prompt = keys("task_id", Name), keys("reward", Number), keys("prompt", Raw | UnsetType)

    def take(rows: Sequence[Any], _: Path) -> Columns:
        steps, first = (step_numbers(list(map(cell, rows))) for cell in (finished, begun))
        indices = step_numbers(list(map(index, rows))).tolist()
        return Columns(
            step=steps,
            group=id_texts(list(map(task, rows))),
            prompts=lambda some: [digest_of(json_of(prompt(rows[at]))) for at in some],
            texts=lambda some: [text_of(json.loads(json_of(prompt(rows[at])))) for at in some],
            numbers={
                "reward": numbers_of(list(map(reward, rows))),
                "sample": sample_hashes(None if number < 0 else str(number) for number in indices),
            },
            noted={_STALE: (first >= 0) & (first != steps)},
        )

    return LineColumns(row=keys.struct(), take=take)


FORMAT = RowFormat(
    name="areal",
    looks_for="rollout/<version>/<task>.jsonl with task_id and tail_version (AReaL)",
    title="AReaL trajectories",
    patterns=("rollout/[0-9]*/*.jsonl", "[0-9]*/*.jsonl", "*.jsonl"),
    recognizes_file=has_keys("task_id", "sample_idx", "tail_version", "reward"),
    records=_records,
    columns=lambda _: LogColumns(lines=_line_columns()),
    inferred=(_BY_TASK, _STALE),
    missing=(_EMPTY, TEXT_ONLY),
    if_noted=frozenset({_STALE}),
)

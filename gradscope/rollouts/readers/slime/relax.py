"""Relax's results of rollouts: a row a sample, a file a step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Raw, UnsetType

from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import numbers_in
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    Name,
    json_of,
    numbers_of,
    rewards_of,
    sample_hashes,
    step_numbers,
    whole_names_of,
)
from gradscope.rollouts.readers.slime.rollouts import (
    chosen_part,
    part_of_reward,
    prompt_digest,
    sample_record,
)
from gradscope.rollouts.reward_table import RewardTable

_NUM_PEEKED = 20
"""Rows of each file that are looked at for the names of rewards, of which one counts."""


def _of_sample(row: LogRow) -> LogRow:
    """A row as slime's samples are read."""
    return replace(row, cells={"rollout_id": row.cells.get("rollout_id"), "sample": row.cells})


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, str | None]:
    return {"part": chosen_part([name for row in rows for name in numbers_in(row.cells.get("reward"))], reading)}


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    completion, index = text_of(row.cells.get("response")), row.cells.get("sample_index")
    reward = part_of_reward(row.cells.get("reward", ABSENT), part)
    yield sample_record(_of_sample(row), reward, completion=completion, index=index)


def _columns(reading: Reading) -> LogColumns | None:
    """The columns of rollouts; None where the first file does not begin with the rewards that others have."""
    first = [[row for _, row in islice(read_jsonl(file, QuarantineLog()), _NUM_PEEKED)] for file in reading.files]
    of_files = [[name for row in rows for name in numbers_in(row.get("reward"))] for rows in first]
    names = tuple(dict.fromkeys(name for found in of_files for name in found))
    if names and (not of_files[0] or reading.request.columns.reward not in (None, *names)):
        return None
    part = chosen_part(names, reading)

    def judged(table: RewardTable) -> RewardTable | None:
        return None if part is None and table.rewards else table  # rewards that come late, of which one counts

    return LogColumns(lines=_line_columns(part), shared={"part": part}, judged=judged)


def _line_columns(part: str | None) -> LineColumns:
    keys = Keys()
    step, group, index = keys("rollout_id", Name | float), keys("group_index", Name | float), keys("sample_index", Any)
    reward, prompt = keys("reward", Any), keys("prompt", Raw | UnsetType)

    def take(rows: Sequence[Any], _: Path) -> Columns:
        rewards = list(map(reward, rows))
        named = rewards_of(rewards)
        indices = step_numbers(list(map(index, rows))).tolist()
        return Columns(
            step=step_numbers(list(map(step, rows))),
            group=whole_names_of(list(map(group, rows))),
            prompts=lambda some: [prompt_digest(json.loads(json_of(prompt(rows[at])))) for at in some],
            texts=lambda some: [text_of(json.loads(json_of(prompt(rows[at])))) for at in some],
            numbers={
                **named,
                "reward": numbers_of([part_of_reward(cell, part) for cell in rewards]),
                "sample": sample_hashes(None if number < 0 else str(number) for number in indices),
            },
        )

    return LineColumns(row=keys.struct(), take=take)


FORMAT = RowFormat(
    name="relax",
    looks_for="rollout_result/train/<step>.jsonl with rollout_id and group_index (Relax)",
    title="Relax rollouts",
    patterns=("rollout_result/train/[0-9]*.jsonl", "train/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("rollout_id", "group_index", "sample_index", "response", "reward"),
    rows_of=read_jsonl,
    survey=_survey,
    records=_records,
    columns=_columns,
    missing=(
        hidden_by("Relax's dynamic sampling drops groups of equal rewards"),
        TEXT_ONLY,
    ),
    takes=frozenset({"reward_column"}),
)

"""The Tinker cookbook's summaries of training rollouts: rewards and lengths, no text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from gradscope.rollouts.readers.format import LogColumns, LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, numbers_in, required_whole, whole_number
from gradscope.rollouts.readers.parsing.scalars import ABSENT
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    Name,
    Number,
    numbers_of,
    rewards_of,
    step_numbers,
    whole_names_of,
)

_ITERATION = re.compile(r"^iteration_([0-9]+)$")


def _records(row: LogRow) -> Iterator[Record]:
    rewards = numbers_in(row.cells.get("trajectory_metrics"))
    step = required_whole(row.cells.get("iteration", number_in_name(_ITERATION, row.file)), "iteration")
    group = required_whole(row.cells.get("group_idx"), "group_idx")
    version = whole_number(row.cells.get("sampling_client_step"))
    yield Record(
        step=step,
        group=str(group),
        prompt_id=f"{step}/{group}",
        prompt="",
        completion="",
        reward=row.reward(row.cells.get("total_reward", ABSENT)),
        rewards=rewards,
        policy_versions=None if version is None or version < 0 else (version, version),
    )


def _line_columns() -> LineColumns:
    keys = Keys()
    step, group = keys("iteration", Name | float | None | UnsetType), keys("group_idx", Name | float)
    reward, metrics = keys("total_reward", Number), keys("trajectory_metrics", Any | UnsetType)

    def take(rows: Sequence[Any], file: Path) -> Columns:
        in_name = number_in_name(_ITERATION, file)
        steps = step_numbers([in_name if cell is UNSET else cell for cell in map(step, rows)])
        groups = whole_names_of(list(map(group, rows)))
        rewards = rewards_of(list(map(metrics, rows)))
        return Columns(
            step=steps,
            group=groups,
            prompts=lambda some: [f"{steps[at]}/{groups[at]}" for at in some],
            numbers={"reward": numbers_of(list(map(reward, rows))), **rewards},
        )

    return LineColumns(row=keys.struct(), take=take)


FORMAT = RowFormat(
    name="tinker",
    looks_for="iteration_*/train_rollout_summaries.jsonl (Tinker cookbook)",
    title="Tinker cookbook rollout summaries",
    patterns=("iteration_*/train_rollout_summaries.jsonl", "train_rollout_summaries.jsonl"),
    recognizes_file=has_keys("group_idx", "traj_idx", "total_reward"),
    records=_records,
    columns=lambda _: LogColumns(lines=_line_columns()),
    inferred=("Prompts are not named: each group counts as a prompt of its own, although prompts return over epochs.",),
    missing=(
        hidden_by("remove_constant_reward_groups, where it was on, removes groups of equal rewards"),
        "Summaries hold lengths instead of text and tokens: they serve degeneracy, passk and check, not rank or "
        "replay.",
    ),
)

"""The Tinker cookbook's summaries of training rollouts: rewards and lengths, no text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, numbers_in, required_whole, whole_number
from gradscope.rollouts.readers.parsing.scalars import ABSENT
from gradscope.rollouts.readers.trainers.tinker_columns import tinker_columns

_ITERATION = re.compile(r"^iteration_([0-9]+)$")


def _records(row: LogRow, known: Set[str] = frozenset(), late: set[str] | None = None) -> Iterator[Record]:
    rewards = numbers_in(row.cells.get("trajectory_metrics"))
    if late is not None:
        late.update(rewards.keys() - known)
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


FORMAT = RowFormat(
    name="tinker",
    looks_for="iteration_*/train_rollout_summaries.jsonl (Tinker cookbook)",
    title="Tinker cookbook rollout summaries",
    patterns=("iteration_*/train_rollout_summaries.jsonl", "train_rollout_summaries.jsonl"),
    recognizes_file=has_keys("group_idx", "traj_idx", "total_reward"),
    records=_records,
    columns=tinker_columns,
    inferred=("Prompts are not named: each group counts as a prompt of its own, although prompts return over epochs.",),
    missing=(
        hidden_by("remove_constant_reward_groups, where it was on, removes groups of equal rewards"),
        "Summaries hold lengths instead of text and tokens: they serve degeneracy, passk and check, not rank or "
        "replay.",
    ),
)

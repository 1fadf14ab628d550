"""AReaL's trajectories as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gradscope.rollouts.readers.format import LogColumns
from gradscope.rollouts.readers.parsing.scalars import digest
from gradscope.rollouts.readers.scan.line_columns import LineColumns, member, numeric, step_number, text
from gradscope.rollouts.reward_table import RewardTable

_KEYS = ("tail_version", "task_id", "reward", "sample_idx", "head_version")
_STEP, _TASK, _REWARD, _SAMPLE, _BEGUN = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))
_IS_STALE = "stale"


def _prompt_id(row: Any) -> str:
    return digest(row.get("prompt"))


_LINES = LineColumns(
    paths=tuple(map(member, _KEYS)),
    derived={"finished": step_number(_STEP), "begun": step_number(_BEGUN)},
    step="finished",
    group=text(_TASK),
    prompt_paths=(member("prompt"),),
    prompt_id=_prompt_id,
    reward=numeric(_REWARD),
    # No reward function: it is looked at and taken off when all rows were seen.
    rewards={_IS_STALE: "CASE WHEN begun <> finished THEN 1.0 ELSE 0.0 END"},
    sample=f"{step_number(_SAMPLE)}::VARCHAR",
    plain=f"coalesce({_BEGUN}, 'null') = 'null' OR begun IS NOT NULL",
)


def areal_columns(note_stale: Callable[[], None]) -> LogColumns:
    """How trajectories are read as columns.

    Args:
        note_stale: Called where a sample was begun by an earlier version of the weights than finished it.

    Returns:
        The columns.
    """

    def judged(table: RewardTable) -> RewardTable:
        if np.any(table.rewards[_IS_STALE] == 1.0):
            note_stale()
        return replace(table, rewards={})

    return LogColumns(names=_LINES.columns, of_file=lambda _: _LINES, judged=judged)

"""NeMo-RL's training data as columns: the rows whose values are lists of length 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.rollouts.readers.format import LogColumns
from gradscope.rollouts.readers.parsing.nested_cells import list_of
from gradscope.rollouts.readers.parsing.scalars import digest, text_of
from gradscope.rollouts.readers.scan.line_columns import (
    LineColumns,
    has_any,
    is_flat,
    is_list_of_ids,
    num_commas,
    num_numbers,
    numeric,
    step_number,
)
from gradscope.rollouts.reward_table import RewardTable

_FLAG = "filtered"
"""No reward function: it is looked at and taken off when all rows were seen."""
_UNSAMPLED = r"^(\[(?:(?:0|0\.0|false),)*)(?:1|1\.0|true)[,\]]"
_REWARDS, _FILTERED = "c[1]", "c[2]"
_PATHS = ("$.rewards", "$.filtered_rewards")


def _of_text(row: Mapping[str, Any]) -> str:
    return digest([text_of(text) for text in list_of(row["content"][0])][:-1])


def _only(cell: str) -> str:
    """The expression for the value in a list of length 1; of longer ones no JSON text, of what is no list null."""
    return f"CASE WHEN starts_with({cell}, '[') THEN substr({cell}, 2, strlen({cell}) - 2) END"


def _is_aligned(cell: str) -> str:
    """The expression for whether a JSON text is a list of one list, of at least ``length`` numbers."""
    others = has_any(cell, '"', "{", "[[[", "],", "]]]")
    is_one = f"starts_with({cell}, '[[') AND ends_with({cell}, ']]') AND {cell} <> '[[]]' AND NOT ({others})"
    return f"({is_one} AND {num_numbers(cell)} >= length)"


_TEXT = LineColumns(
    paths=(*_PATHS, "$.content[0]", "$.content[1]", "$.token_ids"),
    derived={"texts": "json_extract(c[3], '$[*]')::VARCHAR[]"},
    step="file_step",
    group="hash(texts[:-2])::VARCHAR",
    group_is_prompt=True,
    prompt=("texts[:-2]",),
    prompt_id=_of_text,
    reward=numeric(_only(f"coalesce({_FILTERED}, {_REWARDS})")),
    rewards={_FLAG: f"({_FILTERED} IS NOT NULL)::DOUBLE"},
    plain="c[5] IS NULL AND c[4] IS NULL AND starts_with(c[3], '[')",
)
_LENGTH, _IDS, _MASK, _LOGPROBS, _ADVANTAGES = "c[3]", "c[4]", "c[5]", "c[8]", "c[9]"
_TOKENS = replace(
    _TEXT,
    paths=(
        *(*_PATHS, "$.input_lengths", "$.token_ids[0]", "$.token_loss_mask[0]", "$.token_ids[1]"),
        *("$.token_loss_mask[1]", "$.generation_logprobs", "$.advantages"),
    ),
    derived={
        "length": step_number(_only(_LENGTH)),
        "unsampled": f"regexp_extract({_MASK}, '{_UNSAMPLED}', 1)",
        "start": num_commas("unsampled"),
        "prompt_ids": f"array_to_string(string_split(substr({_IDS}, 2), ',')[1:start], ', ')",
        "id": "left(sha256('[[' || prompt_ids || ']]'), 16)",
    },
    group="id",
    group_is_prompt=False,
    prompt=("id",),
    prompt_id="id",
    further={"num_tokens": "length - start"},
    plain=(
        f"c[6] IS NULL AND c[7] IS NULL AND {is_list_of_ids(_IDS)} AND {_IDS} <> '[]' "
        f"AND {num_numbers(_IDS)} >= length AND {is_flat(_MASK)} AND {num_numbers(_MASK)} >= length "
        "AND unsampled <> '' AND start < length AND "
        + " AND ".join(f"({cell} IS NULL OR {_is_aligned(cell)})" for cell in (_LOGPROBS, _ADVANTAGES))
    ),
)


def nemo_rl_columns(
    step_of: Callable[[Path], int | None], *, has_tokens: bool, note: Callable[[bool], None]
) -> LogColumns:
    """How training data is read as columns.

    Args:
        step_of: The step of a file, by its name.
        has_tokens: Whether the first rows have tokens; those that are unlike them are odd.
        note: Called once if any row is plain: whether some reward of these is a filtered one.

    Returns:
        The columns.
    """
    lines = replace(_TOKENS if has_tokens else _TEXT, file_step=step_of)

    def of_file(path: Path) -> LineColumns | None:
        return None if step_of(path) is None else lines

    def judged(table: RewardTable) -> RewardTable:
        flags = table.rewards[_FLAG]
        if not np.all(np.isnan(flags)):
            note(bool(np.any(flags == 1.0)))
        return replace(table, rewards={})

    return LogColumns(names=lines.columns, of_file=of_file, judged=judged)

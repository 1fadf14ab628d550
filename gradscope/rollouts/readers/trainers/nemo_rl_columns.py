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
from gradscope.rollouts.readers.scan.lines import LineColumns, is_list_of_ids, numeric, step_number
from gradscope.rollouts.reward_table import RewardTable

_KEYS = ("rewards", "filtered_rewards", "input_lengths", "content", "token_ids", "token_loss_mask")
_REWARDS, _FILTERED, _LENGTH, _CONTENT, _IDS, _MASK = (f"c[{at}]" for at in range(1, len(_KEYS) + 1))
_LISTS = ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")
# How many values each key has, null where it is not there, and how many elements the first value has.
_COUNTED = ", ".join(f"'$.{name}'" for name in (*_KEYS, *_LISTS, *(f"{name}[0]" for name in _LISTS)))
_NUM_VALUES = {name: f"counts[{at}]" for at, name in enumerate((*_KEYS, *_LISTS), start=1)}
_NUM_ELEMENTS = {name: f"counts[{at}]" for at, name in enumerate(_LISTS, start=len(_KEYS) + len(_LISTS) + 1)}
_UNSAMPLED = r"^(\[(?:(?:0|0\.0|false),)*)(?:1|1\.0|true)[,\]]"
_FLAG = "filtered"
"""No reward function: it is looked at and taken off when all rows were seen."""


def _of_text(row: Mapping[str, Any]) -> str:
    return digest([text_of(text) for text in list_of(row["content"][0])][:-1])


def _is_aligned(name: str) -> str:
    return f"({_NUM_VALUES[name]} = 1 AND {_NUM_ELEMENTS[name]} >= length)"


_HAS_FILTERED = f"{_NUM_VALUES['filtered_rewards']} IS NOT NULL"
_HAS_REWARD = f"CASE WHEN {_HAS_FILTERED} THEN {_NUM_VALUES['filtered_rewards']} ELSE {_NUM_VALUES['rewards']} END = 1"
_TEXT = LineColumns(
    paths=tuple(f"$.{name}[0]" for name in _KEYS),
    derived={
        "counts": f"json_array_length(line, [{_COUNTED}])",
        "texts": f"json_extract({_CONTENT}, '$[*]')::VARCHAR[]",
    },
    step="NULL",
    group="hash(texts[:-2])::VARCHAR",
    group_is_prompt=True,
    prompt=("texts[:-2]",),
    prompt_id=_of_text,
    reward=f"CASE WHEN {_HAS_FILTERED} THEN {numeric(_FILTERED)} ELSE {numeric(_REWARDS)} END",
    rewards={_FLAG: f"CASE WHEN {_HAS_FILTERED} THEN 1.0 ELSE 0.0 END"},
    plain=(
        f"{_HAS_REWARD} AND {_NUM_VALUES['token_ids']} IS NULL AND {_NUM_VALUES['content']} = 1 "
        f"AND starts_with({_CONTENT}, '[')"
    ),
)
_TOKENS = replace(
    _TEXT,
    derived={
        "counts": _TEXT.derived["counts"],
        "length": step_number(_LENGTH),
        "unsampled": f"regexp_extract({_MASK}, '{_UNSAMPLED}', 1)",
        "start": "length(unsampled) - length(replace(unsampled, ',', ''))",
        "prompt_ids": f"array_to_string(string_split(substr({_IDS}, 2), ',')[1:start], ', ')",
        "id": "left(sha256('[[' || prompt_ids || ']]'), 16)",
    },
    group="id",
    group_is_prompt=False,
    prompt=("id",),
    prompt_id="id",
    further={"num_tokens": "length - start"},
    plain=(
        f"{_HAS_REWARD} AND {_NUM_VALUES['input_lengths']} = 1 AND {_is_aligned('token_ids')} "
        f"AND {_is_aligned('token_loss_mask')} AND {is_list_of_ids(_IDS)} AND unsampled <> '' AND start < length AND "
        + " AND ".join(
            f"({_NUM_VALUES[name]} IS NULL OR {_is_aligned(name)})" for name in ("generation_logprobs", "advantages")
        )
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
    lines = _TOKENS if has_tokens else _TEXT

    def of_file(path: Path) -> LineColumns | None:
        step = step_of(path)
        return None if step is None else replace(lines, step=f"{step}::BIGINT")

    def judged(table: RewardTable) -> RewardTable:
        flags = table.rewards[_FLAG]
        if not np.all(np.isnan(flags)):
            note(bool(np.any(flags == 1.0)))
        return replace(table, rewards={})

    return LogColumns(names=lines.columns, of_file=of_file, judged=judged)

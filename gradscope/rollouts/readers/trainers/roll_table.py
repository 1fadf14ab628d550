"""The rewards of ROLL's dumps without an object a rollout.

Legend: N usable rollouts in the order of the log.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gradscope.rollouts.arrays import to_indices, to_strings, to_texts
from gradscope.rollouts.readers.format import LogRow, Reading
from gradscope.rollouts.readers.parsing.nested_cells import required_whole
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.reduction.parts import part_of_rows
from gradscope.rollouts.readers.reduction.whole import table_of
from gradscope.rollouts.reward_table import RewardTable

_BY_ID = "Rollouts of one id and prompt at one step are a group."
_BY_PROMPT = "Some rollouts have no id: those of equal prompts at one step are a group; equal prompts merge."
_digest_of_text = lru_cache(maxsize=256)(digest)  # rollouts of one prompt stand side by side


def grouped_by(have_ids: bool) -> str:
    """What groups are made of, for ``Source.inferred``."""
    return _BY_ID if have_ids else _BY_PROMPT


def id_of(cells: Mapping[str, Any]) -> str:
    """The id of a rollout; "" where it has none."""
    return text_of(cells.get("id"))


def prompt_of(cells: Mapping[str, Any]) -> Any:
    """The prompt of a rollout, text or messages."""
    return cells.get("prompt", cells.get("messages"))


def step_and_group(cells: Mapping[str, Any]) -> tuple[int, str]:
    """What tells the group of a rollout.

    Returns:
        Its step, and its name within it, which is also the id of its prompt.

    Raises:
        UnusableRowError: It has no step, or nothing to group by.
    """
    step = required_whole(cells["global_step"], "the step")
    prompt, name = prompt_of(cells), id_of(cells)
    if not prompt and not name:
        raise UnusableRowError("the row has neither an id nor a prompt")
    prompt_id = _digest_of_text(prompt) if type(prompt) is str else digest(prompt)
    return step, "/".join(filter(None, (text_of(cells.get("domain")), name, prompt_id)))


def table_of_rollouts(rows: Iterable[LogRow], reading: Reading) -> RewardTable:
    """The table of a log.

    Args:
        rows: Its rollouts.
        reading: Takes those that cannot be used, and what groups are made of.

    Returns:
        The table; empty where no rollout can be used.
    """
    numbers: dict[str, int] = {}
    steps, groups, rewards = array("q"), array("q"), array("d")
    have_ids = True
    for row in rows:
        have_ids = have_ids and bool(id_of(row.cells))
        try:
            step, name = step_and_group(row.cells)
        except UnusableRowError as error:
            reading.quarantine.add(str(error), row.location)
            continue
        reward = row.reward(row.cells.get("scores", ABSENT))
        steps.append(step)
        groups.append(numbers.setdefault(name, len(numbers)))
        rewards.append(math.nan if reward is None else reward)
    reading.inferred.append(grouped_by(have_ids))
    if not steps:
        return RewardTable.of_groups(())
    group = np.array(groups)
    names = to_strings(list(numbers)).take(to_indices(group))
    part, _ = part_of_rows(np.array(steps), names, {"reward": np.array(rewards)}, np.arange(len(group)))
    return table_of(replace(part, prompt=to_texts(part.group)))

"""The rewards of ms-swift's lines without an object a rollout.

Legend: N rollouts of a line, G group size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.readers.ms_swift.lines import Line, finite_numbers, row_prompts
from gradscope.rollouts.readers.parsing.nested_cells import usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import ABSENT
from gradscope.rollouts.readers.trl.blocks import Block, prompts_of_groups
from gradscope.rollouts.readers.trl.rewards import scalar_rewards
from gradscope.rollouts.reward_table import RewardTable
from gradscope.rollouts.types import group_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is left of a line without its texts."""

    location: str
    """``file:line``."""
    step: int
    """Its step."""
    block: Block
    """What its rows are cut into groups by, and their scalar rewards."""
    rewards: Mapping[str, NDArray[np.float64]]
    """Reward function -> its rewards, NaN where it gave no finite number, [N] each."""


def batch_of(line: Line, weights: Mapping[str, float]) -> Batch:
    """A line's rewards, advantages and ids of prompts; ``weights`` are those of the reward functions."""
    absent = (math.nan,) * line.size
    rewards = {name: finite_numbers(line.columns.get(name, absent)) for name in weights}
    block = Block(
        path=line.path,
        prompts=row_prompts(line.columns["prompt"]),
        rewards=scalar_rewards(rewards, weights),
        advantages=finite_numbers(line.columns["advantages"]),
        logged_share=None,
    )
    return Batch(location=line.location, step=line.step, block=block, rewards=rewards)


def table_of_batches(batches: Sequence[Batch], size: int, quarantine: QuarantineLog) -> RewardTable:
    """The table of some lines, whose rows are cut into groups.

    Args:
        batches: At least one, in the order of the log.
        size: G; a line holds whole groups.
        quarantine: Takes the rows without a finite reward, which stay in their groups.

    Returns:
        The table.
    """
    for batch in batches:
        _set_aside(batch, quarantine)
    batches = sorted(batches, key=lambda batch: batch.step)
    step = np.repeat([batch.step for batch in batches], [len(batch.block.prompts) // size for batch in batches])
    first_of_step = np.searchsorted(step, step)
    within = np.arange(len(step)) - first_of_step
    prompts, of_group = prompts_of_groups([batch.block.prompts for batch in batches], size)
    total = np.concatenate([batch.block.rewards for batch in batches])
    return RewardTable(
        step=step.astype(np.int64),
        names=tuple(map(group_name, step.tolist(), map(str, within.tolist()))),
        prompt=of_group,
        prompts=prompts,
        size=np.full(len(step), size, dtype=np.int64),
        reward=np.where(np.isfinite(total), total, math.nan),
        rewards={name: np.concatenate([batch.rewards[name] for batch in batches]) for name in batches[0].rewards},
    )


def _set_aside(batch: Batch, quarantine: QuarantineLog) -> None:
    """As the row reader does, row by row: a row to which no reward function applies, or whose sum is too large."""
    lacks = np.all([np.isnan(values) for values in batch.rewards.values()], axis=0)
    for at in np.flatnonzero(~np.isfinite(batch.block.rewards)).tolist():
        usable_reward(ABSENT if lacks[at] else math.inf, batch.location, quarantine)

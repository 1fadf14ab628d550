"""Which reward of each rollout a command looks at, and which groups can be judged by it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.run import Run

TRAINER_REWARD = "reward"
"""How reports call the trainer's own scalar."""


_AT_ONCE = 1 << 20
"""Rewards whose levels are looked for at once: NumPy copies them for it."""


@dataclass(frozen=True, kw_only=True)
class GroupRewards:
    """The groups that can be judged, and how many were left out."""

    table: RewardTable
    """Groups of at least two rollouts whose rewards are all known."""
    values: NDArray[np.float64]
    """The reward that is looked at, of each rollout of ``table``, [N]."""
    num_singletons: int
    """Groups of one rollout: nothing to be compared with."""
    num_incomplete: int
    """Groups with a missing reward: they could be of either kind."""

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        """The different rewards, ascending."""
        parts = range(0, len(self.values), _AT_ONCE)
        return np.unique(np.concatenate([np.unique(self.values[at : at + _AT_ONCE]) for at in parts]))


def check_reward_name(run: Run, reward: str | None) -> None:
    """Refuse a reward function that the log does not know.

    Args:
        reward: The name; None: the trainer's scalar, which is always there.

    Raises:
        UsageError: The log has no such reward function.
    """
    if reward is None:
        return
    names = sorted(reward_table(run.groups).rewards)
    if reward in names:
        return
    near = difflib.get_close_matches(reward, names, n=1, cutoff=0.5)
    known = f"It has: {', '.join(names)}." if names else "It logs no reward per function."
    raise UsageError(
        f"{run.source.path} has no reward function {reward!r}.", hint=f"Did you mean {near[0]!r}?" if near else known
    )


def group_rewards(run: Run, reward: str | None = None) -> GroupRewards:
    """The groups of a run with their rewards.

    Args:
        reward: A reward function's name; None: the trainer's scalar.

    Returns:
        Groups of two or more rollouts whose rewards are all known.

    Raises:
        InputError: No group is left.
    """
    check_reward_name(run, reward)
    table = reward_table(run.groups)
    values = table.reward if reward is None else table.rewards[reward]
    complete = table.sums(np.isnan(values)) == 0
    kept = complete & (table.size >= 2)
    num_incomplete = int(np.sum(~complete))
    num_singletons = len(table) - num_incomplete - int(kept.sum())
    if not kept.any():
        raise InputError(
            f"{run.source.path} has no group to judge: of {len(table)} groups, {num_singletons} have one rollout and "
            f"{num_incomplete} lack a reward.",
            hint="Degenerate groups need two or more rollouts a prompt, each with its reward; name the columns of a "
            "generic file with --prompt-column, --group-column and --reward-column.",
        )
    return GroupRewards(
        table=table.select(kept),
        values=values if kept.all() else values[np.repeat(kept, table.size)],
        num_singletons=num_singletons,
        num_incomplete=num_incomplete,
    )

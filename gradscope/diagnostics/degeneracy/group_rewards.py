"""Which reward of each rollout a command looks at, and which groups can be judged by it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TypeGuard

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

TRAINER_REWARD = "reward"
"""How reports call the trainer's own scalar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewards:
    """The groups that can be judged, and how many were left out."""

    groups: tuple[tuple[RolloutGroup, tuple[float, ...]], ...]
    """Each group with its rewards, all of them known, at least two."""
    num_singletons: int
    """Groups of one rollout: nothing to be compared with."""
    num_incomplete: int
    """Groups with a missing reward: they could be of either kind."""


def _is_complete(rewards: tuple[float | None, ...]) -> TypeGuard[tuple[float, ...]]:
    return None not in rewards


def check_reward_name(run: Run, reward: str | None) -> None:
    """Refuse a reward function that the log does not know.

    Args:
        reward: The name; None: the trainer's scalar, which is always there.

    Raises:
        UsageError: The log has no such reward function.
    """
    if reward is None:
        return
    names = sorted({name for group in run.groups for rollout in group.rollouts for name in rollout.rewards})
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
    kept: list[tuple[RolloutGroup, tuple[float, ...]]] = []
    num_singletons = num_incomplete = 0
    for group in run.groups:
        rewards = group.rewards if reward is None else tuple(r.rewards.get(reward) for r in group.rollouts)
        if not _is_complete(rewards):
            num_incomplete += 1
        elif len(rewards) < 2:
            num_singletons += 1
        else:
            kept.append((group, rewards))
    if not kept:
        raise InputError(
            f"{run.source.path} has no group to judge: of {len(run.groups)} groups, {num_singletons} have one rollout "
            f"and {num_incomplete} lack a reward.",
            hint="Degenerate groups need two or more rollouts a prompt, each with its reward; name the columns of a "
            "generic file with --prompt-column, --group-column and --reward-column.",
        )
    return GroupRewards(groups=tuple(kept), num_singletons=num_singletons, num_incomplete=num_incomplete)

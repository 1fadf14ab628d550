"""Which reward function tells the rollouts of a group apart, and which ties them."""

from __future__ import annotations

import numpy as np

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import all_equal
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.results.signal import RewardTies
from gradscope.rollouts.types import RolloutGroup


def measure_reward_ties(chosen: GroupRewards, *, num_resamples: int, seed: int) -> tuple[RewardTies, ...]:
    """Each reward function on the same groups.

    Args:
        chosen: The groups with the reward that was asked for.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        One entry a function, by name; none where the log holds fewer than two.
    """
    names = sorted({name for group, _ in chosen.groups for rollout in group.rollouts for name in rollout.rewards})
    if len(names) < 2:
        return ()
    dead = [all_equal(rewards) for _, rewards in chosen.groups]
    apart = {name: [tells_apart(group, name) for group, _ in chosen.groups] for name in names}
    num_functions = [sum(apart[name][row] is True for name in names) for row in range(len(dead))]
    prompts = np.array([group.prompt_id for group, _ in chosen.groups], dtype=np.str_)
    return tuple(
        RewardTies(
            reward=name,
            frac_zero_std=_share(apart[name], prompts, num_resamples=num_resamples, seed=seed),
            num_alone=sum(told is True and count == 1 for told, count in zip(apart[name], num_functions, strict=True)),
            num_rescuable=sum(told is True and is_dead for told, is_dead in zip(apart[name], dead, strict=True)),
        )
        for name in names
    )


def tells_apart(group: RolloutGroup, reward: str) -> bool | None:
    """Whether a reward function differs within a group.

    Args:
        group: The group.
        reward: The function's name.

    Returns:
        The answer; None where it is missing for a rollout.
    """
    values = [value for rollout in group.rollouts if (value := rollout.rewards.get(reward)) is not None]
    if len(values) < group.size:
        return None
    return not all_equal(values)


def _share(apart: list[bool | None], prompts: np.ndarray, *, num_resamples: int, seed: int) -> Estimate:
    missing = sum(told is None for told in apart)
    if missing:
        return Estimate.undefined_because(f"it is missing in {missing} of {len(apart)} groups", num_units=len(apart))
    tied = np.array([not told for told in apart], dtype=np.float64)
    return bootstrap_mean(tied, prompts, num_resamples=num_resamples, seed=seed)

"""Which reward function tells the rollouts of a group apart, and which ties them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.results.signal import RewardTies

Array = NDArray[np.float64]


def measure_reward_ties(chosen: GroupRewards, *, resampling: Resampling) -> tuple[RewardTies, ...]:
    """Each reward function on the same groups, by name; none where the log holds fewer than two."""
    groups = chosen.table
    names = sorted(groups.rewards)
    if len(names) < 2:
        return ()
    dead = groups.spread(chosen.values) <= EQUAL_REWARDS
    spread = {name: groups.spread(groups.rewards[name]) for name in names}
    apart = {name: tells_apart(spread[name]) for name in names}
    num_functions = np.sum(list(apart.values()), axis=0)
    return tuple(
        RewardTies(
            reward=name,
            frac_zero_std=_share(spread[name], groups.prompt, resampling=resampling),
            num_alone=int(np.sum(apart[name] & (num_functions == 1))),
            num_rescuable=int(np.sum(apart[name] & dead)),
        )
        for name in names
    )


def tells_apart(spread: Array) -> NDArray[np.bool_]:
    """Whether a reward function differs within groups; not where it is missing for a rollout.

    Args:
        spread: The range of its rewards in each group, NaN where one is missing, [J].

    Returns:
        [J].
    """
    return np.asarray(spread > EQUAL_REWARDS, dtype=np.bool_)


def _share(spread: Array, prompts: NDArray[np.int64], *, resampling: Resampling) -> Estimate:
    missing = int(np.sum(np.isnan(spread)))
    if missing:
        return Estimate.undefined_because(f"it is missing in {missing} of {len(spread)} groups", num_units=len(spread))
    tied = 1.0 - tells_apart(spread)
    return bootstrap_mean(tied, prompts, resampling=resampling)

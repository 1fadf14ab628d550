"""The reward of each function by itself, where a trainer scales them before it adds them up.

Shapes: R rollouts of a step, F reward functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.run import TrainerSettings
from gradscope.rollouts.types import RolloutGroup

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRewards:
    """The rewards of all functions over a step."""

    table: Array
    """Before weighing, group by group; NaN where a function gave none, [R, F]."""
    weights: Array
    """Of the functions, [F]."""


def function_rewards(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> FunctionRewards | None:
    """The rewards of each function as logged, with the trainer's ``reward_weights``, or 1 each where it has none.

    Returns:
        The table; None where no function was logged, or their number is not that of the weights.
    """
    names = list(dict.fromkeys(name for group in groups for rollout in group.rollouts for name in rollout.rewards))
    weights = settings.get("reward_weights") or [1.0] * len(names)
    if not names or len(weights) != len(names):
        return None
    rows = [
        [np.nan if (reward := rollout.rewards.get(name)) is None else reward for name in names]
        for group in groups
        for rollout in group.rollouts
    ]
    return FunctionRewards(table=np.array(rows, dtype=np.float64), weights=np.array(weights, dtype=np.float64))

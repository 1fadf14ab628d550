"""Advantages relative to the group: each rollout against the other rollouts of its prompt.

Legend: G rewards of a group, along the last axis; leading axes are groups. A group of equal rewards
gets exactly zero from each of them, where float rounding of the mean would leave 1e-17.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.groups import EQUAL_REWARDS

Array = NDArray[np.float64]

TRL_EPSILON = 1e-4
"""Added to the group's std; verl adds 1e-6, OpenRLHF 1e-9."""


def dr_grpo(rewards: Array) -> Array:
    """The reward minus the group's mean, r - mean(r): sums to zero over the group.

    Args:
        rewards: [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> dr_grpo(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
        [0.5, -0.5, -0.5, 0.5]
    """
    centered = rewards - rewards.mean(axis=-1, keepdims=True)
    return np.asarray(
        np.where(np.ptp(rewards, axis=-1, keepdims=True) > EQUAL_REWARDS, centered, 0.0), dtype=np.float64
    )


def grpo(rewards: Array) -> Array:
    """(r - mean(r)) / (std(r) + 1e-4), std with G - 1 in the denominator: TRL's ``scale_rewards="group"``.

    Args:
        rewards: [..., G].

    Returns:
        Advantages, [..., G]; a group of one has none.

    Example:
        >>> grpo(np.array([1.0, 0.0, 0.0, 1.0])).round(4).tolist()
        [0.8659, -0.8659, -0.8659, 0.8659]
    """
    if rewards.shape[-1] < 2:
        return np.zeros(rewards.shape)
    return np.asarray(dr_grpo(rewards) / (rewards.std(axis=-1, ddof=1, keepdims=True) + TRL_EPSILON), dtype=np.float64)


def rloo(rewards: Array) -> Array:
    """The reward minus the mean of the other G - 1 rewards, which is (r - mean(r)) G / (G - 1).

    Args:
        rewards: [..., G], G >= 2.

    Returns:
        Advantages, [..., G].

    Example:
        >>> rloo(np.array([1.0, 0.0, 0.0])).tolist()
        [1.0, -0.5, -0.5]
    """
    size = rewards.shape[-1]
    return np.asarray(dr_grpo(rewards) * (size / (size - 1)), dtype=np.float64)


def max_rl(rewards: Array) -> Array:
    """(r - mean(r)) / mean(r); zero for a group whose mean is zero or less.

    Args:
        rewards: [..., G], non-negative.

    Returns:
        Advantages, [..., G].

    Example:
        >>> max_rl(np.array([1.0, 0.0, 0.0, 0.0])).tolist()
        [3.0, -1.0, -1.0, -1.0]
    """
    mean = rewards.mean(axis=-1, keepdims=True)
    return np.asarray(np.divide(dr_grpo(rewards), mean, out=np.zeros(rewards.shape), where=mean > 0), dtype=np.float64)

"""Advantages relative to the group: each rollout against the other rollouts of its prompt.

Legend: G rewards of a group, along the last axis; leading axes are groups. A group of equal rewards
gets exactly zero from each of them, where float rounding of the mean would leave 1e-17.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.outcomes.passk import pass_at_k

Array = NDArray[np.float64]

TRL_EPSILON = 1e-4
"""Added to the group's std; verl adds 1e-6, OpenRLHF 1e-9."""


def live_only(rewards: Array, advantages: Array) -> Array:
    """Advantages with exactly zero in the groups whose rewards are equal, where rounding would leave 1e-17.

    Args:
        rewards: [..., G].
        advantages: [..., G].

    Returns:
        Advantages, [..., G].
    """
    is_live = np.ptp(rewards, axis=-1, keepdims=True) > EQUAL_REWARDS
    return np.asarray(np.where(is_live, advantages, 0.0), dtype=np.float64)


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
    return live_only(rewards, rewards - rewards.mean(axis=-1, keepdims=True))


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


def grpo_negative(rewards: Array) -> Array:
    """:func:`grpo`, and -1 for every rollout of a group without a success.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> grpo_negative(np.array([[0.0, 0.0], [1.0, 1.0]])).tolist()
        [[-1.0, -1.0], [0.0, 0.0]]
    """
    failed = rewards.max(axis=-1, keepdims=True) == 0.0
    return np.asarray(np.where(failed, -1.0, grpo(rewards)), dtype=np.float64)


def pass_weights(k: int) -> Callable[[Array], Array]:
    """The weights that make the policy gradient one of pass@k, without bias and without a baseline.

    A pass gets k, for every set of k rollouts that it is in has a success; a fail gets k times the share of such sets
    that another rollout saves, k (1 - C(G-1-c, k-1) / C(G-1, k-1)) with c passes. The mean over the group of A_i s_i is
    then the gradient, as it is with ``reinforce`` at k = 1. Source: Walder and Karkhanis 2025 (Pass@k policy
    optimization), arXiv 2505.15201, whose weights are for sums over the group: 1/G of these.

    Args:
        k: The budget, at least 1 and at most G.

    Returns:
        From rewards of 0 and 1, [..., G], to advantages, [..., G].

    Example:
        >>> pass_weights(2)(np.array([1.0, 0.0, 0.0, 0.0])).round(4).tolist()
        [2.0, 0.6667, 0.6667, 0.6667]
    """

    def weights(rewards: Array) -> Array:
        size = rewards.shape[-1]
        num_pass = rewards.sum(axis=-1, keepdims=True).astype(np.int64)
        saved = pass_at_k(size - 1, np.minimum(num_pass, size - 1), k - 1)  # used where a fail leaves c <= G - 1
        return np.asarray(k * np.where(rewards == 1.0, 1.0, saved), dtype=np.float64)

    return weights

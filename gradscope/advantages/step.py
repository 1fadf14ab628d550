"""Advantages relative to the whole step: the baseline borrows from the other prompts, so dead groups still push.

Legend: N groups of a step, G rewards of a group; arrays are [N, G].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def batch_mean(rewards: Array) -> Array:
    """The reward minus the mean over the step: sums to zero over the step, not over a group.

    Args:
        rewards: [N, G].

    Returns:
        Advantages, [N, G].

    Example:
        >>> batch_mean(np.array([[1.0, 1.0], [1.0, 0.0]])).tolist()
        [[0.25, 0.25], [0.25, -0.75]]
    """
    return np.asarray(rewards - rewards.mean(), dtype=np.float64)


def shrinkage(rewards: Array) -> Array:
    """The reward minus a James-Stein baseline between the group's mean and the mean of the other groups.

    b_ij = (1 - l_i) m_i^(-j) + l_i m^(-i), where m_i^(-j) is the mean of the other rewards of the group, m^(-i) that of
    the other groups' means, and l_i = (N-1)/N v/(v+s) with v the mean over the other groups of their mean's sampling
    variance and s the variance of their means. The baseline of a reward does not depend on it, so the gradient stays
    unbiased. Source: Zeng et al. 2025, arXiv 2511.03710, equations 10 and 13 to 16.

    Where the other groups have neither spread nor noise, or there are none, l_i is 0: what is left is ``rloo``.

    Args:
        rewards: [N, G], G >= 2.

    Returns:
        Advantages, [N, G].

    Example:
        >>> shrinkage(np.array([[0.0, 0.0], [0.0, 1.0]])).round(4).tolist()  # l_1 = 1/2 * .25 / (.25 + 0), l_2 = 0
        [[-0.25, -0.25], [-1.0, 1.0]]
    """
    num_groups, size = rewards.shape
    others_of_group = (rewards.sum(axis=1, keepdims=True) - rewards) / (size - 1)
    if num_groups < 2:
        return np.asarray(rewards - others_of_group, dtype=np.float64)
    noise, spread, target = _other_groups(rewards)
    total = noise + spread
    weight = (num_groups - 1) / num_groups * np.divide(noise, total, out=np.zeros(num_groups), where=total > 0)
    baseline = (1 - weight)[:, None] * others_of_group + (weight * target)[:, None]
    return np.asarray(rewards - baseline, dtype=np.float64)


def _other_groups(rewards: Array) -> tuple[Array, Array, Array]:
    """For each group, of all others: mean sampling variance of a mean, variance of the means, mean of the means."""
    size, means = rewards.shape[1], rewards.mean(axis=1)
    noises = rewards.var(axis=1, ddof=1) / size
    others = [np.delete(np.arange(len(means)), index) for index in range(len(means))]
    return (
        np.array([noises[index].mean() for index in others]),
        np.array([means[index].var() for index in others]),
        np.array([means[index].mean() for index in others]),
    )

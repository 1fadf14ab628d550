"""Advantages without a group baseline: a rollout's own reward decides, so groups of equal rewards still push.

Legend: G rewards of a group, along the last axis; leading axes are groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PASS_WEIGHT = 0.1
"""Weight of passes in ``w_reinforce``, lambda in its source, which recommends this value."""


def reinforce(rewards: Array) -> Array:
    """The reward itself.

    Args:
        rewards: [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> reinforce(np.array([1.0, 0.0])).tolist()
        [1.0, 0.0]
    """
    return np.array(rewards, dtype=np.float64)


def sign(rewards: Array) -> Array:
    """2r - 1: +1 for a pass, -1 for a fail.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> sign(np.array([1.0, 0.0])).tolist()
        [1.0, -1.0]
    """
    return np.asarray(2.0 * rewards - 1.0, dtype=np.float64)


def positive_only(rewards: Array) -> Array:
    """+1 for a pass, 0 for a fail.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> positive_only(np.array([1.0, 0.0])).tolist()
        [1.0, 0.0]
    """
    return np.array(rewards, dtype=np.float64)


def negative_only(rewards: Array) -> Array:
    """0 for a pass, -1 for a fail.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> negative_only(np.array([1.0, 0.0])).tolist()
        [0.0, -1.0]
    """
    return np.asarray(rewards - 1.0, dtype=np.float64)


def w_reinforce(rewards: Array) -> Array:
    """+0.1 for a pass, -1 for a fail: the weight of passes with which the source trains.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> w_reinforce(np.array([1.0, 0.0])).tolist()
        [0.1, -1.0]
    """
    return np.asarray(np.where(rewards == 1.0, PASS_WEIGHT, -1.0), dtype=np.float64)


def tasa(rewards: Array) -> Array:
    """+G/n_pos for a pass, -G/n_neg for a fail: the mean over passes minus the mean over fails.

    Each class weighs one in the mean over the group that training takes. Sums to zero in a mixed group; a group of one
    class keeps that class's mean of +1 or -1.

    Args:
        rewards: 0 or 1, [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> tasa(np.array([1.0, 0.0, 0.0, 0.0])).round(4).tolist()
        [4.0, -1.3333, -1.3333, -1.3333]
    """
    size = rewards.shape[-1]
    num_pass = rewards.sum(axis=-1, keepdims=True)
    of_class = rewards / np.maximum(num_pass, 1) - (1 - rewards) / np.maximum(size - num_pass, 1)
    return np.asarray(size * of_class, dtype=np.float64)

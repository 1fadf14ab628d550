"""Advantages that weigh rewards by the norms of score vectors: for where a Gram matrix is at hand.

Training has none: the norms take a backward pass a rollout, before the update that they are for.

Legend: G rewards of a group, along the last axis; leading axes are groups; s the score vector of a rollout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import live_only
from gradscope.metrics.gram.reward_baselines import optimal_baselines

Array = NDArray[np.float64]


def optimal_advantages(rewards: Array, squared_norms: Array) -> Array:
    """The reward minus the constant of the group that makes its gradient least noisy, sum(|s|^2 r) / sum(|s|^2).

    It sees the rollout that it is for, as the group's mean does. A group of equal rewards gets exactly zero.

    Args:
        rewards: [n, G].
        squared_norms: |s|^2, the diagonal of the Gram matrix, [n, G].

    Returns:
        Advantages, [n, G].

    Example:
        >>> optimal_advantages(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]])).tolist()
        [[0.25, -0.75]]
    """
    return live_only(rewards, rewards - optimal_baselines(rewards, squared_norms))

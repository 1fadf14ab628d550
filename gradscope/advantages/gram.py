"""Advantages whose baseline is a weighted mean of the group's rewards: by squared norms of gradients, or by lengths.

The norms are for where a Gram matrix is at hand. Training has none: they take a backward pass a rollout, before the
update that they are for. Lengths stand in for them where a token's gradient is taken to be as large as another's and
orthogonal to it; they are known wherever completions are.

Legend: G rewards of a group, along the last axis; leading axes are groups; s the score vector of a rollout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import live_only
from gradscope.metrics.gram.reward_baselines import optimal_baselines

Array = NDArray[np.float64]


def optimal_advantages(rewards: Array, weights: Array) -> Array:
    """The reward minus the group's weighted mean, sum(w r) / sum(w).

    With w = |s|^2 no other constant of the group makes its gradient less noisy. It sees the rollout that it is for, as
    the group's mean does. A group of equal rewards gets exactly zero.

    Args:
        rewards: [n, G].
        weights: |s|^2, the diagonal of the Gram matrix, or the number of tokens, [n, G].

    Returns:
        Advantages, [n, G].

    Example:
        >>> optimal_advantages(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]])).tolist()
        [[0.25, -0.75]]
    """
    return live_only(rewards, rewards - optimal_baselines(rewards, weights))

"""Advantages of single tokens: what a token led to, or how sure the policy was of it.

Legend: G rollouts of a group, T tokens of a completion, which differs from rollout to rollout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

COMPENSATION_LIMIT = 1.5
"""Largest factor of ``compensation_clipped``: halfway between no compensation and the most there can be."""


def return_to_go(token_rewards: Sequence[ArrayLike]) -> tuple[Array, ...]:
    """What a token and those after it earn, minus the group's mean of that at the same place.

    R_t = sum of the rewards from token t on; A_it = R_it - mean over the group of R_jt, a rollout that has ended
    counting as 0. A reward from before a token cannot be due to it, so it is left out.

    Args:
        token_rewards: Reward of each token, [G][T].

    Returns:
        Advantages, [G][T].

    Example:
        >>> [advantage.tolist() for advantage in return_to_go([[1.0, 0.0, 1.0], [0.0, 0.0]])]
        [[1.0, 0.5, 0.5], [-1.0, -0.5]]
    """
    return _against_group([np.cumsum(np.asarray(rewards, dtype=np.float64)[::-1])[::-1] for rewards in token_rewards])


def own_rewards(token_rewards: Sequence[ArrayLike]) -> tuple[Array, ...]:
    """A token's own reward minus the group's mean at the same place: nothing that comes after it is credited to it.

    A_it = r_it - mean over the group of r_jt, a rollout that has ended counting as 0.

    Args:
        token_rewards: Reward of each token, [G][T].

    Returns:
        Advantages, [G][T].

    Example:
        >>> [advantage.tolist() for advantage in own_rewards([[1.0, 0.0, 1.0], [0.0, 0.0]])]
        [[0.5, 0.0, 0.5], [-0.5, 0.0]]
    """
    return _against_group([np.asarray(rewards, dtype=np.float64) for rewards in token_rewards])


def _against_group(values: Sequence[Array]) -> tuple[Array, ...]:
    """Values of tokens, [G][T], minus their mean over the group at the same place, an ended rollout counting as 0."""
    padded = np.zeros((len(values), max(len(row) for row in values)))
    for index, row in enumerate(values):
        padded[index, : len(row)] = row
    baseline = padded.mean(axis=0)
    return tuple(row - baseline[: len(row)] for row in values)


def gae(values: ArrayLike, reward: float, *, decay: float = 0.95) -> Array:
    """Generalized advantage estimation with one reward at the end and no discount (Schulman et al. 2016).

    d_t = V_{t+1} - V_t, with the reward in place of V after the last token; A_t = d_t + decay A_{t+1}. At a decay of 1
    that is the reward minus the value, at 0 the change of the value.

    Args:
        values: What is expected before each token, [T].
        reward: What the rollout earned.
        decay: Lambda; 0.95 is the paper's and TRL's.

    Returns:
        Advantages, [T].

    Example:
        >>> gae([0.5, 0.25], 1.0, decay=0.5).tolist(), gae([0.5, 0.25], 1.0, decay=1.0).tolist()
        ([0.125, 0.75], [0.5, 0.75])
    """
    known = np.asarray(values, dtype=np.float64)
    advantages, after = np.diff(known, append=reward), 0.0
    for place in reversed(range(len(known))):
        after = advantages[place] = advantages[place] + decay * after
    return np.asarray(advantages, dtype=np.float64)


def compensation(logprobs: ArrayLike, max_logprobs: ArrayLike, *, limit: float = 2.0) -> Array:
    """The factor 2 - p/p_max: 1 for the most likely token, up to 2 for one that was hardly likely.

    Args:
        logprobs: Log-probability of each sampled token, [T].
        max_logprobs: That of the most likely token at its place, [T].
        limit: The largest factor.

    Returns:
        The factor, in [1, 2], [T].

    Example:
        >>> compensation(np.log([0.5, 0.1]), np.log([0.5, 0.4])).round(4).tolist()
        [1.0, 1.75]
        >>> compensation(np.log([0.5, 0.1]), np.log([0.5, 0.4]), limit=1.5).round(4).tolist()
        [1.0, 1.5]
    """
    ratio = np.exp(np.minimum(np.asarray(logprobs, dtype=np.float64) - np.asarray(max_logprobs), 0.0))
    return np.asarray(np.minimum(2.0 - ratio, limit), dtype=np.float64)

"""Advantages relative to the group: each rollout against the other rollouts of its prompt.

Legend: G rewards of a group, along the last axis; leading axes are groups. A group of equal rewards
gets exactly zero from each of them, where float rounding of the mean would leave 1e-17.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.outcomes.passk import pass_at_k

Array = NDArray[np.float64]

TRL_EPSILON = 1e-4
"""Added to the group's std; verl adds 1e-6, OpenRLHF 1e-9."""
NGRPO_EPSILON = 1e-6
"""Added to the std of ``ngrpo``, as its authors' program does."""
DRIFT, NOISE, START, KRPO_EPSILON = 1e-5, 1e-2, (0.0, 1.0), 1e-8
"""The filter of ``krpo``: variance of the state's drift Q and of a reward R, the state's mean and variance before the
first rollout, and what is added to its std. They are the constants of its authors' program."""


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


def ngrpo(rewards: Array) -> Array:
    """(r - m) / (s + 1e-6), m and s of the group's rewards and one more of 1: a group of fails is pushed away from.

    The mean and the std, with G in the denominator of the variance, are of G + 1 rewards, the last that of a rollout
    that nobody sampled. A group of passes gets exactly zero.

    Args:
        rewards: 0 or 1, [..., G], G >= 2.

    Returns:
        Advantages, [..., G].

    Example:
        >>> ngrpo(np.array([1.0, 0, 0, 0, 0, 0, 0, 0]))[:2].round(2).tolist()  # the example of the paper
        [1.76, -0.5]
    """
    virtual = np.concatenate([rewards, np.ones((*rewards.shape[:-1], 1))], axis=-1)
    mean, std = virtual.mean(axis=-1, keepdims=True), virtual.std(axis=-1, ddof=1, keepdims=True)
    return np.asarray((rewards - mean) / (std + NGRPO_EPSILON), dtype=np.float64)


def krpo(rewards: Array) -> Array:
    """(r_i - x_i) / (sqrt(P_i) + 1e-8), x and P of a Kalman filter that has read the rewards up to r_i, as sampled.

    P' = P + Q, K = P' / (P' + R), x_i = x + K (r_i - x), P_i = (1 - K) P', from x = 0 and P = 1. The baseline has seen
    the rollout that it is for, and the order of the rollouts matters: the first has a baseline of 0.99 r.

    Args:
        rewards: [..., G].

    Returns:
        Advantages, [..., G].

    Example:
        >>> krpo(np.array([1.0, 0.0])).round(4).tolist()  # x = 0.9901, 0.4974, P = 0.0099, 0.0050
        [0.0995, -7.0481]
    """
    advantages = np.empty(rewards.shape)
    state, variance = np.full(rewards.shape[:-1], START[0]), START[1]
    for place in range(rewards.shape[-1]):
        predicted = variance + DRIFT
        gain = predicted / (predicted + NOISE)
        state = state + gain * (rewards[..., place] - state)
        variance = (1 - gain) * predicted
        advantages[..., place] = (rewards[..., place] - state) / (np.sqrt(variance) + KRPO_EPSILON)
    return advantages


def leave_one_out_weights(k: int) -> Callable[[Array], Array]:
    """The weights of :func:`pass_weights` with a baseline: what a rollout adds to the best of k - 1 others.

    The mean over all sets of k - 1 other rollouts of max(r_i, best of the set) - best of the set, times k. A rollout's
    baseline does not depend on it, so the mean over the group of A_i s_i is still an unbiased estimate of the gradient
    of the expected best of k, of pass@k where rewards are 0 and 1. Source: Walder and Karkhanis 2025, s^(loo-1).

    Args:
        k: The budget, from 2 to G.

    Returns:
        From rewards, [..., G], to advantages, [..., G].

    Example:
        >>> leave_one_out_weights(2)(np.array([1.0, 0.0, 0.0, 0.5])).round(4).tolist()  # (1 + 1 + .5) 2/3
        [1.6667, 0.0, 0.0, 0.6667]
    """

    def weights(rewards: Array) -> Array:
        size = rewards.shape[-1]
        order = np.argsort(rewards, axis=-1, kind="stable")
        ascending = np.take_along_axis(rewards, order, axis=-1)
        # sets whose best is one of the lower ones: what lies between two neighbours is gained over each of them
        sets_below = np.cumsum(comb(np.arange(size - 1), k - 2))
        gained = np.cumsum(np.diff(ascending, axis=-1) * sets_below, axis=-1)
        sorted_gain = np.concatenate([np.zeros((*rewards.shape[:-1], 1)), gained], axis=-1)
        found = np.empty(rewards.shape)
        np.put_along_axis(found, order, sorted_gain * (k / comb(size - 1, k - 1)), axis=-1)
        return live_only(rewards, found)

    return weights


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

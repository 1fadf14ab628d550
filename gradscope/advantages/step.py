"""Advantages relative to the whole step: the baseline borrows from the other prompts, so dead groups still push.

Groups may differ in size. Legend: N groups of a step, G rewards of a group, [N][G]; an array [N, G] is one such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.advantages.group import TRL_EPSILON, dr_grpo
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS

Array = NDArray[np.float64]

WHITENING_EPSILON = 1e-8
"""Added to the variance of ``reinforce_plus_plus``, as verl does."""


def batch_mean(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """The reward minus the mean over the step's rollouts: sums to zero over the step, not over a group.

    Args:
        rewards: [N][G].

    Returns:
        Advantages, [N][G].

    Example:
        >>> [group.tolist() for group in batch_mean([np.array([1.0, 1.0, 1.0]), np.array([0.0])])]
        [[0.25, 0.25, 0.25], [-0.75]]
    """
    groups = list(rewards)
    mean = np.concatenate(groups).mean()
    return tuple(np.asarray(group - mean, dtype=np.float64) for group in groups)


def batch_std(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """(r - mean of the group) / (std of all rewards of the step + 1e-4): TRL's ``scale_rewards="batch"``.

    Args:
        rewards: [N][G].

    Returns:
        Advantages, [N][G]; zero for a group of equal rewards, and all of them for a step of one rollout.

    Example:
        >>> found = batch_std([np.array([1.0, 0.0]), np.array([0.0, 0.0])])  # std of 1, 0, 0, 0: 1/2
        >>> [group.round(4).tolist() for group in found]
        [[0.9998, -0.9998], [0.0, 0.0]]
    """
    groups = list(rewards)
    spread = _spread(np.concatenate(groups))
    return tuple(dr_grpo(group) / (spread + TRL_EPSILON) for group in groups)


def reinforce_plus_plus(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """(r - m) / sqrt(v + 1e-8), m and v the mean and variance of all rewards of the step: no group has a baseline.

    The variance has R - 1 in its denominator. A step of equal rewards gets exactly zero.

    Args:
        rewards: [N][G].

    Returns:
        Advantages, [N][G].

    Example:
        >>> found = reinforce_plus_plus([np.array([1.0, 1.0]), np.array([0.0, 0.0])])  # v = 1/3
        >>> [group.round(4).tolist() for group in found]
        [[0.866, 0.866], [-0.866, -0.866]]
    """
    groups = list(rewards)
    everything = np.concatenate(groups)
    if np.ptp(everything) <= EQUAL_REWARDS:
        return tuple(np.zeros(len(group)) for group in groups)
    scale = np.sqrt(everything.var(ddof=1) + WHITENING_EPSILON)
    return tuple(np.asarray((group - everything.mean()) / scale, dtype=np.float64) for group in groups)


def gdpo(rewards: Iterable[Array], weights: ArrayLike) -> tuple[Array, ...]:
    """Each reward function scaled within the group by itself, then weighed and summed, then scaled over the step.

    (r_f - mean_f) / (std_f + 1e-4) within the group, with G - 1; the weighted sum s of the functions over its std over
    the step + 1e-4, with R - 1: TRL's ``multi_objective_aggregation="normalize_then_sum"``. The step's mean of s, which
    TRL subtracts, is zero: s sums to zero in each group.

    Args:
        rewards: Of each function, [N][G, F].
        weights: Of the functions, [F].

    Returns:
        Advantages, [N][G].

    Example:
        >>> found = gdpo([np.array([[1.0, 0.0], [0.0, 0.1]]), np.array([[0.0, 1.0], [0.0, 0.0]])], [1.0, 1.0])
        >>> [group.round(4).tolist() for group in found]  # a tenth counts like a whole: they cancel, all but 1e-4
        [[0.0016, -0.0016], [1.2245, -1.2245]]
    """
    totals = [_scaled_columns(group) @ np.asarray(weights, dtype=np.float64) for group in rewards]
    everything = np.concatenate(totals)
    spread = _spread(everything)
    return tuple(np.asarray(group / (spread + TRL_EPSILON), dtype=np.float64) for group in totals)


def _scaled_columns(group: Array) -> Array:
    """Each function's rewards of a group, [G, F], minus their mean over their std; zero where they are all equal."""
    centered = dr_grpo(group.T).T
    return np.asarray(centered / (np.array([_spread(column) for column in group.T]) + TRL_EPSILON), dtype=np.float64)


def _spread(values: Array) -> float:
    """The std with one less in the denominator; zero of one value, and of equal ones."""
    return float(np.sqrt(_variance(values, ddof=1))) if len(values) > 1 else 0.0


def shrinkage(rewards: Iterable[Array]) -> tuple[Array, ...]:
    """The reward minus a James-Stein baseline between the group's mean and the mean of the other groups.

    b_ij = (1 - l_i) m_i^(-j) + l_i m^(-i), where m_i^(-j) is the mean of the other rewards of the group, m^(-i) that of
    the other groups' means, and l_i = (N-1)/N v/(v+s) with v the mean over the other groups of their mean's sampling
    variance and s the variance of their means. The baseline of a reward does not depend on it, so the gradient stays
    unbiased. Where groups differ in size, each mean and each variance is of its group's own size, and each group counts
    once. Source: Zeng et al. 2025, arXiv 2511.03710, equations 10 and 13 to 16.

    Where the other groups have neither spread nor noise, or there are none, l_i is 0: what is left is ``rloo``.

    Args:
        rewards: [N][G], G >= 2.

    Returns:
        Advantages, [N][G].

    Example:
        >>> found = shrinkage([np.array([0.0, 0.0]), np.array([0.0, 1.0])])  # l_1 = 1/2 * .25 / (.25 + 0), l_2 = 0
        >>> [group.round(4).tolist() for group in found]
        [[-0.25, -0.25], [-1.0, 1.0]]
    """
    groups = list(rewards)
    others_of_group = [(group.sum() - group) / (len(group) - 1) for group in groups]
    if len(groups) < 2:
        return tuple(group - others for group, others in zip(groups, others_of_group, strict=True))
    noise, spread, target = _other_groups(groups)
    total = noise + spread
    weight = (len(groups) - 1) / len(groups) * np.divide(noise, total, out=np.zeros(len(groups)), where=total > 0)
    return tuple(
        group - ((1 - share) * others + share * mean)
        for group, others, share, mean in zip(groups, others_of_group, weight, target, strict=True)
    )


def _other_groups(groups: Sequence[Array]) -> tuple[Array, Array, Array]:
    """For each group, of all others: mean sampling variance of a mean, variance of the means, mean of the means."""
    means = np.array([group.mean() for group in groups])
    noises = np.array([_variance(group, ddof=1) / len(group) for group in groups])
    others = [np.delete(np.arange(len(means)), index) for index in range(len(means))]
    return (
        np.array([noises[index].mean() for index in others]),
        np.array([_variance(means[index], ddof=0) for index in others]),
        np.array([means[index].mean() for index in others]),
    )


def _variance(values: Array, *, ddof: int) -> float:
    """Exactly zero for equal values, where rounding of their mean would leave 1e-34 and decide the weight."""
    return float(values.var(ddof=ddof)) if np.ptp(values) > EQUAL_REWARDS else 0.0

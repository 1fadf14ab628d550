"""What goes together within groups, and how often a reward goes to reasoning that does not hold.

Shapes: R rollouts of all groups. Only what differs within a group reaches a group-mean baseline,
so the shares and correlations are of deviations from the group's mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_statistics,
    cluster_numbers,
    deviations_within,
    sums_of_columns,
)
from gradscope.metrics.uncertainty.intervals import wilson_interval

Array = NDArray[np.float64]


def within_groups(values: ArrayLike, groups: ArrayLike) -> Array:
    """Each value, [R], minus the mean of its group.

    >>> within_groups([1.0, 0.0, 5.0], ["a", "a", "b"]).tolist()
    [0.5, -0.5, 0.0]
    """
    return deviations_within(np.asarray(values, dtype=np.float64), cluster_numbers(groups))


def correlation_within(
    first: ArrayLike, second: ArrayLike, groups: ArrayLike, clusters: ArrayLike | None = None
) -> Estimate:
    """Correlation of two numbers of a rollout within groups: sum d_x d_y / sqrt(sum d_x^2 sum d_y^2).

    Both numbers, the group and the prompt of each rollout, the unit of resampling, are [R]; without prompts each
    rollout is one. Undefined where one of the two never differs within a group.

    >>> correlation_within([1.0, 2.0, 7.0, 9.0], [1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"]).value
    -0.9486832980505138
    """
    x, y = within_groups(first, groups), within_groups(second, groups)
    units = sums_of_columns((x * y, x * x, y * y), np.arange(len(x)) if clusters is None else clusters, len(x))
    totals = units.sum(axis=0)
    if not (totals[1] > 0 and totals[2] > 0):
        return Estimate.undefined_because("one of the two never differs within a group", num_units=len(units))
    (correlation,) = bootstrap_statistics(correlation_of_sums, units, bounds=(-1.0, 1.0))
    return correlation


def correlation_of_sums(sums: Array) -> Array:
    """A correlation, [..., 1], from sums of products of deviations and of both squares, [..., 3]."""
    return ratio_or_zero(sums[..., :1], np.sqrt(np.clip(sums[..., 1:2] * sums[..., 2:], 0.0, None)))


def rank_correlation_within(first: ArrayLike, second: ArrayLike, groups: ArrayLike, clusters: ArrayLike) -> Estimate:
    """The same of ranks among all, for numbers of which a few are far larger than the rest.

    >>> rank_correlation_within([1.0, 2.0, 900.0], [0.1, 0.2, 0.3], ["a"] * 3, [1, 2, 3]).value
    1.0
    """
    from scipy.stats import rankdata  # on first use: the import takes a third of a second, as long as a report

    return correlation_within(rankdata(np.asarray(first)), rankdata(np.asarray(second)), groups, clusters)


def ratio_or_zero(above: Array, below: Array) -> Array:
    """A ratio; 0, which keeps a resample in the middle, where nothing differs and the denominator is not positive."""
    empty = below <= 0
    with np.errstate(over="ignore"):
        return np.asarray(np.where(empty, 0.0, above / np.where(empty, 1.0, below)))


REWARDED = 0.5
"""A rollout with at least this reward is rewarded: it passes, or its true answer is the likelier thing to follow."""


def count_incoherent(rollouts: Iterable[tuple[float, bool]]) -> tuple[int, int]:
    """Rewarded rollouts, and those of them whose reasoning has a wrong or missing step.

    >>> count_incoherent([(1.0, True), (0.5, False), (0.49, False)])
    (2, 1)
    """
    coherent = [is_coherent for reward, is_coherent in rollouts if reward >= REWARDED]
    return len(coherent), coherent.count(False)


def frac_incoherent(num_rewarded: int, num_incoherent: int) -> Estimate:
    """The share of rewarded rollouts, assumed independent (Wilson), whose reasoning has a wrong or missing step.

    >>> frac_incoherent(2, 1).value, frac_incoherent(0, 0).undefined
    (0.5, 'no rollout was rewarded')
    """
    if not num_rewarded:
        return Estimate.undefined_because("no rollout was rewarded")
    share = num_incoherent / num_rewarded
    low, high = wilson_interval(share, num_rewarded)
    return Estimate(value=share, low=low, high=high, num_units=num_rewarded)

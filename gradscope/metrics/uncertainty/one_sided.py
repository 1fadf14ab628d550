"""How often chance alone would make a change as bad as one that was seen: one-sided p-values.

Written here: ``scipy.stats.permutation_test`` is the same, behind an import that takes a third of a second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.level import student_quantile

_EXACT = 14
"""Differences up to which all sign flips are gone through."""
_FLIPS = 20_000
_AT_ONCE = 500
_EQUAL = 1e-12


def rise_by_flips(differences: ArrayLike, margin: float, *, seed: int = 0) -> float:
    """The share of sign flips of d - margin whose sum is as large as that of the pairs: a test of mean d <= margin.

    Where both sides of a pair come from one process either sign is as likely, and the test is exact for any number of
    pairs and any distribution.

    Args:
        differences: After minus before, [n], at least one.
        margin: How much the mean may rise.
        seed: Seed of the flips, 20,000 where there are too many to go through all.

    Returns:
        The p-value; 1 where no pair differs from the margin.

    Example:
        >>> rise_by_flips([1.0, 2.0, 3.0], 0.0), rise_by_flips([1.0, 2.0, 3.0], 2.0)
        (0.125, 0.75)
    """
    moved = np.asarray(differences, dtype=np.float64) - margin
    moved = moved[np.abs(moved) > _EQUAL]
    seen = float(moved.sum()) - _EQUAL * max(len(moved), 1)
    if len(moved) <= _EXACT:
        flips = 1.0 - 2.0 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float(np.mean(flips @ moved >= seen))
    rng = np.random.default_rng(seed)
    count = 1  # the pairs as they are
    for _ in range(_FLIPS // _AT_ONCE):
        count += int(np.sum(rng.choice((-1.0, 1.0), size=(_AT_ONCE, len(moved))) @ moved >= seen))
    return count / (_FLIPS + 1)


def rise_by_interval(change: Estimate, margin: float) -> float:
    """The p-value at which the lower end of an interval would reach the margin, by Student's t with num_units - 1.

    Args:
        change: After minus before, with an interval.
        margin: How much it may rise.

    Returns:
        The p-value: 0.025 where the lower end of the 95 % interval is the margin.

    Raises:
        ValueError: There is no interval.

    Example:
        >>> round(rise_by_interval(Estimate(value=0.4, low=0.1, high=0.7, num_units=9), 0.1), 6)
        0.025
    """
    if change.interval is None or change.value is None:
        raise ValueError("a p-value needs an interval")
    reach = change.value - change.interval[0]
    if reach <= 0:
        return 0.0 if change.value > margin else 1.0
    free = max(change.num_units - 1, 1)
    return float(stdtr(free, -(change.value - margin) / reach * student_quantile(free)))

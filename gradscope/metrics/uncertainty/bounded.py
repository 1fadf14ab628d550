"""Means of measurements that lie in a known range, such as the rank of a matrix of N rows, with intervals that do too.

Wilson's interval of a share holds for anything in [0, 1], and so takes the worst case for certain: units at both ends.
Ranks of the groups of a step lie close together, and with fewer than ten groups that worst case is several times as
wide as what they show. Here Student's interval is taken on the logit of the mean's place in its range, which follows
the skewness near both ends and cannot leave the range. ``benchmarks/referee/few_groups.py`` measures what it covers.

Legend: J units.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.level import student_quantile
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.metrics.uncertainty.studentized import FEW_UNITS, influence_values

Array = NDArray[np.float64]

_EQUAL = 1e-6
"""Share of the range within which measurements are equal: two equal rows of float32 have rank 1 + 1e-7, not 1."""


def bounded_means(
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    low: float,
    high: float,
    resampling: Resampling = RESAMPLING,
) -> tuple[Estimate, ...]:
    """Means of columns over rows, for measurements between two ends.

    With 10 units or more the interval is the studentized bootstrap's of the shares of the range.

    Args:
        values: One column a measurement, [rows, q]; rounding may have left them just off its ends.
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit.
        low: The least that a measurement can be.
        high: The greatest; equal to ``low`` where there is no choice.
        resampling: How often, and from which seed.

    Returns:
        q estimates. No interval for one unit, or where all are equal: nothing tells how much they vary.

    Example:
        >>> (rank,) = bounded_means([[2.0], [2.5], [3.0]], low=1, high=8)
        >>> round(rank.low, 2), rank.value, round(rank.high, 2)
        (1.61, 2.5, 4.07)
        >>> bounded_means([[1.0]] * 8, low=1, high=16)[0].interval is None
        True
    """
    span = high - low or 1.0
    shares = (np.asarray(values, dtype=np.float64) - low) / span
    shares = np.where(shares < _EQUAL, 0.0, np.where(shares > 1 - _EQUAL, 1.0, shares))
    units = cluster_sums(np.column_stack([shares, np.ones(len(shares))]), clusters)
    if len(units) >= FEW_UNITS:
        means = bootstrap_means(shares, clusters, resampling=resampling)
    else:
        means = tuple(_student(column, units[:, -1]) for column in units[:, :-1].T)
    return tuple(
        _on_scale(mean, low, span, exact=bool(np.ptp(column / units[:, -1]) <= _EQUAL))
        for mean, column in zip(means, units.T[:-1], strict=True)
    )


def _student(sums: Array, weights: Array) -> Estimate:
    """Mean of a share with Student's interval on its logit, logit m +- t(J - 1) se / (m (1 - m))."""
    num_units, mean = len(sums), float(sums.sum() / weights.sum())
    if num_units < 2 or not 0 < mean < 1:
        return Estimate.exact(mean, num_units=num_units)
    influence = influence_values(lambda total: total[..., :1] / total[..., 1:], np.column_stack([sums, weights]))
    error = float(np.sqrt(np.sum(influence**2) / (num_units * (num_units - 1))))
    half = student_quantile(num_units - 1) * error / (mean * (1 - mean))
    center = float(logit(mean))
    return Estimate(value=mean, low=float(expit(center - half)), high=float(expit(center + half)), num_units=num_units)


def _on_scale(share: Estimate, low: float, span: float, *, exact: bool) -> Estimate:
    value, ends = low + span * (share.value or 0.0), share.interval
    if exact or ends is None:
        return Estimate.exact(value, num_units=share.num_units)
    return Estimate(value=value, low=low + span * ends[0], high=low + span * ends[1], num_units=share.num_units)

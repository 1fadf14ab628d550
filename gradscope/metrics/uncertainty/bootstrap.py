"""Intervals by resampling units (prompts): of means, of shares, of paired differences, of functions of sums.

Legend: J units, m columns, q statistics.

The studentized bootstrap is the rule, for a share never wider than Wilson's interval, which holds for any units in
[0, 1]. Where resampling cannot work it is not used: with fewer than 10 units a mean gets
Student's t and a share Wilson's interval; so does a share that fewer than 6 units move, and one whose units are all 0
or 1. ``docs/research/degeneracy_intervals.csv`` has the coverage of these intervals.

Wilson's interval takes the worst case for certain: units at both ends. Ranks of the groups of a step lie close
together, and with fewer than ten groups that worst case is several times as wide as what they show. For measurements
in a known range Student's interval is computed on the logit of the mean's position in its range, which follows the
skewness near both ends and cannot leave the range. ``docs/research/validation_intervals_of_the_mean.csv`` has its
coverage.

Written here, for ``scipy.stats.bootstrap`` has no studentized interval, no clusters, and calls the statistic in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty import studentized
from gradscope.metrics.uncertainty.intervals import (
    RESAMPLING,
    Interval,
    Resampling,
    difference_of,
    student_quantile,
    wilson_interval,
)

Array = NDArray[np.float64]

FEW_INFORMATIVE = 6
"""A share that fewer units than this keep away from its end (0 or 1) is a rare event to the resamples."""


def bootstrap_statistics(
    statistic: studentized.Statistic,
    units: ArrayLike,
    *,
    within: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    resampling: Resampling = RESAMPLING,
) -> tuple[Estimate, ...]:
    """Functions of sums over J units, with studentized intervals from the same resamples.

    Args:
        statistic: From column sums [..., m] to the statistics [..., q]; called on all resamples at once.
        units: One row a unit, [J, m]; a unit is what was drawn independently, a prompt with all its groups. Fewer than
            5, or a statistic that does not vary with them, give no interval.
        within: The least and the greatest that each statistic can be, numbers or [q]. A few units of very different
            size know no better, and their studentized interval runs away.

    Raises:
        ValueError: There is no unit, or a number is not finite.

    >>> shares = [[1.0, 2.0], [0.0, 2.0], [2.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 2.0]]
    >>> (ratio,) = bootstrap_statistics(lambda sums: sums[..., :1] / sums[..., 1:], shares)
    >>> round(ratio.value, 4), ratio.low < ratio.value < ratio.high
    (0.4167, True)
    """
    return _statistics_of_each(statistic, [units], within=within, resampling=resampling)[0]


def _statistics_of_each(
    statistic: studentized.Statistic,
    units: Sequence[ArrayLike],
    *,
    within: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    resampling: Resampling,
) -> list[tuple[Estimate, ...]]:
    """The statistics of several tables, whose resamples draw the same units where there are as many."""
    tables = [np.asarray(table, dtype=np.float64) for table in units]
    values = [_values(statistic, table) for table in tables]
    intervals = studentized.student_intervals(statistic, tables, resampling=resampling)
    estimates = []
    for table, of_table, ends_of_table in zip(tables, values, intervals, strict=True):
        ranges = zip(*(np.broadcast_to(end, of_table.shape) for end in within), strict=True)
        estimates.append(
            tuple(
                _estimate(value, ends and (max(ends[0], least), min(ends[1], greatest)), len(table))
                for value, ends, (least, greatest) in zip(of_table, ends_of_table, ranges, strict=True)
            )
        )
    return estimates


def _values(statistic: studentized.Statistic, table: Array) -> Array:
    if table.ndim != 2 or not len(table):
        raise ValueError(f"units are a non-empty table, got shape {table.shape}")
    values = np.asarray(statistic(table.sum(axis=0)), dtype=np.float64)
    if not (np.all(np.isfinite(table)) and np.all(np.isfinite(values))):
        raise ValueError("units and their statistics are finite numbers")
    return values


def bootstrap_means(
    values: ArrayLike, clusters: ArrayLike | None = None, *, resampling: Resampling = RESAMPLING, share: bool = True
) -> tuple[Estimate, ...]:
    """Means of columns over rows, intervals by resampling clusters of rows; undefined without rows.

    Args:
        values: One column a quantity, [rows, q].
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit. Groups of one prompt at
            different steps stay together.
        share: Whether the values lie in [0, 1]; then so do the intervals, and Wilson's is used where the bootstrap
            cannot work.

    Raises:
        ValueError: There is not one cluster a row, or a share lies outside [0, 1].

    >>> shares = bootstrap_means([[0.0, 1.0]] * 30)
    >>> [(round(mean.low, 3), mean.value, round(mean.high, 3)) for mean in shares]
    [(0.0, 0.0, 0.114), (0.886, 1.0, 1.0)]
    """
    table = np.asarray(values, dtype=np.float64)
    if not len(table):
        return tuple(Estimate.undefined_because("there is nothing to average") for _ in range(table.shape[-1]))
    if share and (np.any(table < 0) or np.any(table > 1)):
        raise ValueError("shares lie in [0, 1]")
    units = studentized.unit_sums(table.T, clusters, len(table))
    if share:
        return bootstrap_shares([units], resampling=resampling)[0]
    return _statistics_of_each(_means, [units], resampling=resampling)[0]


def bootstrap_shares(tables: Sequence[Array], *, resampling: Resampling = RESAMPLING) -> list[tuple[Estimate, ...]]:
    """:func:`bootstrap_means` of numbers in [0, 1], of several tables of units, [J, q + 1] each.

    Args:
        tables: The sums of the columns over the rows of each unit, and how many rows it has.
    """
    return [
        _shares(means, table)
        for table, means in zip(tables, _statistics_of_each(_means, tables, resampling=resampling), strict=True)
    ]


def bootstrap_mean(
    values: ArrayLike, clusters: ArrayLike | None = None, *, resampling: Resampling = RESAMPLING, share: bool = True
) -> Estimate:
    """One mean over rows, [rows]: :func:`bootstrap_means` for a single column.

    >>> mean = bootstrap_mean([0.0, 1.0] * 20)
    >>> round(mean.low, 2), mean.value, round(mean.high, 2)
    (0.35, 0.5, 0.65)
    """
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    (mean,) = bootstrap_means(column, clusters, resampling=resampling, share=share)
    return mean


def bootstrap_difference(first: ArrayLike, second: ArrayLike, *, resampling: Resampling = RESAMPLING) -> Estimate:
    """Mean of second minus first, two shares paired by row, [rows]: both sides of a resample draw the same prompts.

    Where fewer than 10 units differ, the interval is made of those of the gains and of the losses, which are shares:
    two policies that agree on all of 30 prompts are not known to be equal.

    Raises:
        ValueError: The two differ in length, or a share lies outside [0, 1].

    >>> bootstrap_difference([0.0, 0.5, 0.0, 0.0, 0.5], [0.5, 0.5, 0.5, 1.0, 0.5]).value
    0.4
    >>> same = bootstrap_difference([0.5] * 30, [0.5] * 30)
    >>> round(same.low, 3), same.value, round(same.high, 3)
    (-0.114, 0.0, 0.114)
    """
    before, after = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if before.shape != after.shape:
        raise ValueError(f"paired values have one shape, got {before.shape} and {after.shape}")
    if np.any(np.minimum(before, after) < 0) or np.any(np.maximum(before, after) > 1):
        raise ValueError("shares lie in [0, 1]")
    if not len(before):
        return Estimate.undefined_because("there is nothing to average")
    gain = after - before
    units = studentized.unit_sums([gain], None, len(gain))
    if np.count_nonzero(units[:, 0]) >= studentized.FEW_UNITS:
        (mean,) = bootstrap_statistics(_means, units, resampling=resampling)
        low, high = mean.ends
        # Differences are symmetric with long tails, which the studentized quantiles of few units do not reach.
        half = float(stdtrit(len(units) - 1, studentized.TAILS[0])) * _standard_error(units)
        ends = min(low, float(gain.mean()) - half), max(high, float(gain.mean()) + half)
        return _estimate(float(gain.mean()), ends, len(units)).within(-1.0, 1.0)
    parts = np.column_stack([np.maximum(gain, 0.0), np.maximum(-gain, 0.0)])
    won, lost = bootstrap_means(parts, resampling=resampling)
    net = difference_of(lost, won, correlation=correlation_of_means(parts.T))
    return _estimate(float(gain.mean()), net.ends, len(units))


def correlation_of_means(columns: Sequence[Array] | Array, clusters: ArrayLike | None = None) -> float:
    """The correlation of two means over rows, [2, rows], by each cluster's influence; 0 where one does not vary.

    >>> round(correlation_of_means(np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.5]])), 3)
    -1.0
    """
    units = studentized.unit_sums(columns, clusters, len(columns[0]))
    if len(units) < 2:
        return 0.0
    influence = studentized.influence_values(_means, units)
    if np.min(np.ptp(influence, axis=0)) < 1e-12:
        return 0.0
    first, second = influence.T - influence.mean(axis=0)[:, None]
    return float(min(max(first @ second / np.sqrt((first @ first) * (second @ second)), -1.0), 1.0))


def _means(sums: Array) -> Array:
    return np.asarray(sums[..., :-1] / sums[..., -1:], dtype=np.float64)


def _standard_error(units: Array) -> float:
    """Of a mean over rows, by its influence values."""
    influence = studentized.influence_values(_means, units)
    return float(np.sqrt(np.sum(influence**2) / (len(units) * (len(units) - 1))))


def _shares(means: Sequence[Estimate], units: Array) -> tuple[Estimate, ...]:
    """Shares with the intervals that their units allow, from sums and weights of the units, [J, q + 1]."""
    weights = units[:, -1]
    of_unit = units[:, :-1] / weights[:, None]
    above, below = np.count_nonzero(of_unit > 0.0, axis=0), np.count_nonzero(of_unit < 1.0, axis=0)
    # a share of 0 or 1 is not both above 0 and below 1
    num_extreme = 2 * len(units) - above - below
    all_extreme = (num_extreme == len(units)) & bool(np.all(weights == weights[0]))
    rare = (len(units) < studentized.FEW_UNITS) | (np.minimum(above, below) < FEW_INFORMATIVE)
    num_effective = float(weights.sum() ** 2 / np.sum(weights**2))  # Kish's: J where all weigh the same
    shares: list[Estimate] = []
    for mean, by_wilson in zip(means, (all_extreme | rare).tolist(), strict=True):
        value = mean.value or 0.0
        ends = wilson_interval(value, num_effective)
        if not by_wilson and mean.interval is not None:
            # Resamples that draw hardly any of a few rare units have next to no standard error, and the studentized
            # interval then runs away; Wilson's covers whatever the units in [0, 1] are.
            ends = max(mean.ends[0], ends[0]), min(mean.ends[1], ends[1])
        shares.append(_estimate(value, ends, len(units)))
    return tuple(shares)


def _estimate(value: float, ends: Interval | None, num_units: int) -> Estimate:
    # The studentized interval also corrects a bias, and may then leave the plain value out.
    low, high = (None, None) if ends is None else (min(ends[0], float(value)), max(ends[1], float(value)))
    return Estimate(value=float(value), low=low, high=high, num_units=num_units)


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
    """Means of columns over rows, [rows, q], for measurements between two ends.

    With 10 units or more the interval is the studentized bootstrap's of the shares of the range; rounding may have left
    a measurement just off its ends. No interval for one unit, or where all are equal: nothing tells how much they vary.

    >>> (rank,) = bounded_means([[2.0], [2.5], [3.0]], low=1, high=8)
    >>> round(rank.low, 2), rank.value, round(rank.high, 2)
    (1.61, 2.5, 4.07)
    >>> bounded_means([[1.0]] * 8, low=1, high=16)[0].interval is None
    True
    """
    span = high - low or 1.0
    shares = (np.asarray(values, dtype=np.float64) - low) / span
    shares = np.where(shares < _EQUAL, 0.0, np.where(shares > 1 - _EQUAL, 1.0, shares))
    units = studentized.unit_sums(shares.T, clusters, len(shares))
    if len(units) >= studentized.FEW_UNITS:
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
        return Estimate(value=mean, num_units=num_units)
    influence = studentized.influence_values(
        lambda total: total[..., :1] / total[..., 1:], np.column_stack([sums, weights])
    )
    error = float(np.sqrt(np.sum(influence**2) / (num_units * (num_units - 1))))
    half = student_quantile(num_units - 1) * error / (mean * (1 - mean))
    center = float(logit(mean))
    return Estimate(value=mean, low=float(expit(center - half)), high=float(expit(center + half)), num_units=num_units)


def _on_scale(share: Estimate, low: float, span: float, *, exact: bool) -> Estimate:
    ends = None if exact else share.interval
    bottom, top = (None, None) if ends is None else (low + span * end for end in ends)
    return Estimate(value=low + span * (share.value or 0.0), low=bottom, high=top, num_units=share.num_units)

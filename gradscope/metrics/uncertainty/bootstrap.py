"""Intervals by resampling units (prompts): of means, of shares, of paired differences, of functions of sums.

Legend: T tables, J units (clusters), m columns, B resamples, q statistics. Everything that is resampled is a smooth
function of sums over units, so one resample is a row of counts times the table of units, and the jackknife is a
subtraction: no statistic is ever called in a Python loop.

The bootstrap-t (Efron 1982; Hall 1988, Annals of Statistics 16) divides the error of each resample by that resample's
own standard error, and so learns the skewness that pass rates near 0 or 1 have. The standard error is that of the
jackknife's influence values, which need no derivative of the statistic.

This studentized bootstrap is the rule, for a share never wider than Wilson's interval, which holds for any units in
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import (
    COVERAGE,
    QUANTILES,
    RESAMPLING,
    Interval,
    Resampling,
    difference_of,
    student_quantile,
    wilson_interval,
)

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

_MAX_GAPS = 4  # numbers a row up to which integer clusters are counted rather than sorted


def cluster_numbers(clusters: ArrayLike) -> Numbers:
    """The clusters of rows, numbered from 0 on without a gap, in the order of the numbers or of the alphabet.

    >>> cluster_numbers(["b", "a", "b"]).tolist(), cluster_numbers([7, 3, 7]).tolist()
    ([1, 0, 1], [1, 0, 1])
    """
    return _numbered(np.asarray(clusters))[0]


def deviations_within(values: NDArray[Any], numbers: Numbers) -> Array:
    """Values minus the mean of their cluster, from :func:`cluster_numbers`, [rows] each."""
    means = np.bincount(numbers, weights=values) / np.bincount(numbers)
    return np.asarray(values - means[numbers], dtype=np.float64)


def cluster_sums(table: ArrayLike, clusters: ArrayLike | None) -> Array:
    """Rows, [rows, m], summed by cluster, [J, m], in the order of the clusters' first rows; None: each row is its own.

    Raises:
        ValueError: There is not one cluster a row.

    >>> cluster_sums([[1.0], [2.0], [4.0]], ["b", "a", "b"]).tolist()
    [[5.0], [2.0]]
    """
    rows = np.asarray(table, dtype=np.float64)
    if clusters is None:
        return rows
    return sums_of_columns(rows.T, clusters, len(rows))


def sums_of_columns(columns: Iterable[NDArray[Any]], clusters: ArrayLike, num_rows: int) -> Array:
    """The same of m columns that are made one by one, so that a long table need not be in memory.

    Raises:
        ValueError: There is not one cluster a row.
    """
    labels = np.asarray(clusters)
    if labels.shape != (num_rows,):
        raise ValueError(f"{num_rows} rows need {num_rows} clusters, got shape {labels.shape}")
    numbers, first = _numbered(labels)
    if len(first) == num_rows:  # each row is a cluster
        return np.column_stack(list(columns)).astype(np.float64, copy=False)
    order = np.argsort(first)
    return np.column_stack([np.bincount(numbers, weights=column)[order] for column in columns])


def unit_sums(columns: Iterable[NDArray[Any]], clusters: ArrayLike | None, num_rows: int) -> Array:
    """The sums of q columns by cluster, and how many rows each has, [J, q + 1]; None: each row is its own.

    Raises:
        ValueError: There is not one cluster a row.
    """
    if clusters is None:
        return np.column_stack([*columns, np.ones(num_rows)])
    return sums_of_columns(chain(columns, [np.ones(num_rows)]), clusters, num_rows)


def _numbered(labels: NDArray[np.generic]) -> tuple[Numbers, Numbers]:
    """The number of each row's cluster, [rows], and the first row of each cluster, [J]."""
    integers = labels.astype(np.int64, copy=False) if np.issubdtype(labels.dtype, np.integer) else None
    # numbers from 0 on without large gaps need no sorting
    if integers is None or integers.min(initial=0) < 0 or integers.max(initial=0) > _MAX_GAPS * len(integers):
        _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
        return numbers, first
    first = np.full(int(integers.max(initial=-1)) + 1, len(integers))
    first[integers[::-1]] = np.arange(len(integers))[::-1]  # of several rows of a cluster the first is written last
    occurs = first < len(integers)
    if occurs.all():  # numbers without a gap are those asked for, and of a long log not copied
        return integers, first
    return np.asarray(np.cumsum(occurs) - 1, dtype=np.int64)[integers], first[occurs]


Statistic = Callable[[Array], Array]  # from column sums over units [..., m] to the statistics [..., q]

MIN_UNITS = 5  # with fewer units there is no interval
FEW_UNITS = 10  # with fewer units the quantiles of resamples are noise, and Student's t takes their place
MANY_UNITS = 1000  # with more units the quantiles of resamples are those of their expansion, and nothing is resampled
TAILS = np.array([(1 + COVERAGE) / 2, (1 - COVERAGE) / 2])  # probabilities of the upper and the lower quantile

_TABLES = 16  # tables whose resamples are summed at once: enough that their product runs at the speed of the processor
_CHUNK = 2_000_000  # draws made at once: bounds the memory, never the result


def influence_values(statistic: Statistic, units: ArrayLike) -> Array:
    """How much each unit moves each statistic: (J - 1) (mean of the jackknife - jackknife without the unit).

    [..., J, q] from units [..., J, m]; for a mean these are the deviations from it.

    >>> influence_values(lambda sums: sums[..., :1] / sums[..., 1:], [[0.0, 1.0], [1.0, 1.0], [5.0, 1.0]]).tolist()
    [[-2.0], [-1.0], [3.0]]
    """
    table = np.asarray(units, dtype=np.float64)
    jackknifed = np.asarray(statistic(table.sum(axis=-2, keepdims=True) - table), dtype=np.float64)
    return np.asarray((table.shape[-2] - 1) * (jackknifed.mean(axis=-2, keepdims=True) - jackknifed), dtype=np.float64)


def standard_error(statistic: Statistic, units: Array) -> float:
    """Of one statistic, by its influence values."""
    influence = influence_values(statistic, units)
    return float(np.sqrt(np.sum(influence**2) / (len(units) * (len(units) - 1))))


def ratios(sums: Array) -> Array:
    """The statistic of means and shares: each column's sum over that of the last, [..., m - 1]."""
    return np.asarray(sums[..., :-1] / sums[..., -1:], dtype=np.float64)


def student_intervals(
    statistic: Statistic, tables: Sequence[Array], *, resampling: Resampling
) -> list[list[Interval | None]]:
    """The studentized interval of each statistic of each table of units, [J, m].

    Tables of the same number of units share the units that their resamples draw, and one product of matrices. None
    where there are too few units, or a statistic does not vary with them.
    """
    by_size: dict[int, list[int]] = {}
    for index, units in enumerate(tables):
        by_size.setdefault(len(units), []).append(index)
    by_table: dict[int, list[Interval | None]] = {}
    for num_units, indices in by_size.items():
        for start in range(0, len(indices), _TABLES):
            chunk = indices[start : start + _TABLES]
            units = np.stack([tables[index] for index in chunk])  # [T, J, m]
            values = np.asarray(statistic(units.sum(axis=1)), dtype=np.float64)
            if num_units < MIN_UNITS:
                by_table |= dict.fromkeys(chunk, [None] * values.shape[1])
                continue
            influence = influence_values(statistic, units)
            errors = np.sqrt(np.sum(influence**2, axis=1) / (num_units * (num_units - 1)))
            tiny = 1e-12 * np.maximum(np.abs(values), 1.0)
            if num_units > MANY_UNITS:
                upper, lower = _expanded_quantiles(influence)
            else:
                upper, lower = _t_quantiles(statistic, units, values, influence, np.maximum(errors, tiny), resampling)
            lows, highs = values - upper * errors, values - lower * errors
            for index, *bounds in zip(chunk, lows, highs, errors, tiny, strict=True):
                by_table[index] = [
                    (float(low), float(high)) if error > spread else None
                    for low, high, error, spread in zip(*bounds, strict=True)
                ]
    return [by_table[index] for index in range(len(tables))]


def _expanded_quantiles(influence: Array) -> Array:
    """The quantiles, [2, T, q], that resampling many units estimates, to second order (Hall 1992, 3.3)."""
    # The studentized error of a statistic whose influence values have skewness g is below x with probability Phi(x) + g
    # (2 x^2 + 1) phi(x) / (6 sqrt(J)).
    num_units = influence.shape[1]
    squares = influence * influence
    spread = np.sqrt(np.mean(squares, axis=1))
    skewness = np.mean(squares * influence, axis=1) / np.where(spread > 0, spread, 1.0) ** 3
    normal = stdtrit(num_units - 1, TAILS)[:, None, None]
    return np.asarray(normal - skewness / np.sqrt(num_units) * (2 * normal**2 + 1) / 6, dtype=np.float64)


def _t_quantiles(
    statistic: Statistic, units: Array, values: Array, influence: Array, errors: Array, resampling: Resampling
) -> Array:
    """Upper and lower quantile of the studentized error of each statistic, [2, T, q]."""
    num_tables, num_units, num_columns = units.shape
    quantiles = np.empty((2, *values.shape))
    quantiles[:] = stdtrit(num_units - 1, TAILS)[:, None, None]
    if num_units < FEW_UNITS:
        return quantiles
    columns = np.concatenate([units, influence, influence**2], axis=2)
    orders = np.stack([np.lexsort(table.T) for table in units])  # equal units have equal resamples, in whatever order
    columns = np.take_along_axis(columns, orders[:, :, None], axis=1)
    studentized = []
    for sums in _resampled_sums(columns.swapaxes(0, 1).reshape(num_units, -1), resampling):
        table_sums = sums.reshape(len(sums), num_tables, -1)
        first, second = np.split(table_sums[..., num_columns:] / num_units, 2, axis=2)
        spreads = np.sqrt(np.maximum(second - first**2, 0.0) / (num_units - 1))
        # A resample that draws no unit of a rare kind has no spread, and nothing to say about the error.
        usable = spreads > 1e-6 * errors
        studentized.append(
            np.where(usable, (statistic(table_sums[..., :num_columns]) - values) / np.where(usable, spreads, 1), np.nan)
        )
    errors_of_resamples = np.concatenate(studentized)
    usable = np.isfinite(errors_of_resamples)
    share = np.mean(usable, axis=0)
    always, partly, rare = share == 1, (share > 0.5) & (share < 1), (share > 0.5) & (share < _USUAL)
    student = quantiles[:, rare]
    quantiles[:, always] = np.quantile(errors_of_resamples[:, always], TAILS, axis=0)
    quantiles[:, partly] = np.nanquantile(errors_of_resamples[:, partly], TAILS, axis=0)
    # Those that draw none of a rare kind would lie in the lower or the upper tail, so the others make it too short.
    quantiles[0, rare] = np.maximum(quantiles[0, rare], student[0])
    quantiles[1, rare] = np.minimum(quantiles[1, rare], student[1])
    return quantiles


def _resampled_sums(units: Array, resampling: Resampling) -> Iterator[Array]:
    """Column sums of resamples, in chunks [b, m] that add up to B rows."""
    num_units, num_resamples = len(units), resampling.num_resamples
    if num_units * num_resamples <= _CHUNK:
        yield _all_counts(num_units, num_resamples, resampling.seed) @ units
        return
    rng = np.random.default_rng(resampling.seed)
    rows = max(1, _CHUNK // num_units)
    for start in range(0, num_resamples, rows):
        yield _drawn_counts(rng, num_units, min(rows, num_resamples - start)) @ units


@lru_cache(maxsize=4)
def _all_counts(num_units: int, num_resamples: int, seed: int) -> Array:
    """How often each resample draws each unit, [B, J]: the same for every statistic of so many units, step by step."""
    counts = _drawn_counts(np.random.default_rng(seed), num_units, num_resamples)
    counts.flags.writeable = False
    return counts


def _drawn_counts(rng: np.random.Generator, num_units: int, num_resamples: int) -> Array:
    drawn = rng.integers(num_units, size=(num_resamples, num_units), dtype=np.int64)
    drawn += num_units * np.arange(num_resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=num_resamples * num_units)
    return counts.reshape(num_resamples, num_units).astype(np.float64)


_USUAL = 0.99  # share of resamples with a spread from which on those without hardly move the quantiles
FEW_INFORMATIVE = 6
"""A share that fewer units than this keep away from its end (0 or 1) is a rare event to the resamples."""


_NEAR_AN_END = 0.1
"""Distance of a share from 0 or 1 below which units that were not drawn may lie further off than all its spread."""


def bootstrap_statistics(
    statistic: Statistic,
    units: ArrayLike,
    *,
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    resampling: Resampling = RESAMPLING,
) -> tuple[Estimate, ...]:
    """Functions of sums over J units, with studentized intervals from the same resamples.

    Args:
        statistic: From column sums [..., m] to the statistics [..., q]; called on all resamples at once.
        units: One row a unit, [J, m]; a unit is what was drawn independently, a prompt with all its groups. Fewer than
            5, or a statistic that does not vary with them, give no interval.
        bounds: Lower and upper limit of each statistic, numbers or [q]. The studentized interval of a few units of very
            different size may run away.

    Raises:
        ValueError: There is no unit, or a number is not finite.

    >>> shares = [[1.0, 2.0], [0.0, 2.0], [2.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 2.0]]
    >>> (ratio,) = bootstrap_statistics(ratios, shares)
    >>> round(ratio.value, 4), ratio.low < ratio.value < ratio.high
    (0.4167, True)
    """
    return _statistics_of_each(statistic, [units], bounds=bounds, resampling=resampling)[0]


def _statistics_of_each(
    statistic: Statistic,
    units: Sequence[ArrayLike],
    *,
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    resampling: Resampling,
) -> list[tuple[Estimate, ...]]:
    """The statistics of several tables, whose resamples draw the same units where there are equally many."""
    tables = [np.asarray(table, dtype=np.float64) for table in units]
    for table in tables:
        if table.ndim != 2 or not len(table):
            raise ValueError(f"units are a non-empty table, got shape {table.shape}")
    values = [np.asarray(statistic(table.sum(axis=0)), dtype=np.float64) for table in tables]
    if not all(np.all(np.isfinite(numbers)) for numbers in (*tables, *values)):
        raise ValueError("units and their statistics are finite numbers")
    intervals = student_intervals(statistic, tables, resampling=resampling)
    estimates = []
    for table, table_values, table_ends in zip(tables, values, intervals, strict=True):
        ranges = zip(*(np.broadcast_to(end, table_values.shape) for end in bounds), strict=True)
        estimates.append(
            tuple(
                _estimate(value, ends and (max(ends[0], lower), min(ends[1], upper)), len(table))
                for value, ends, (lower, upper) in zip(table_values, table_ends, ranges, strict=True)
            )
        )
    return estimates


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
    units = unit_sums(table.T, clusters, len(table))
    if share:
        return bootstrap_shares([units], resampling=resampling)[0]
    return _statistics_of_each(ratios, [units], resampling=resampling)[0]


def bootstrap_shares(
    tables: Sequence[Array], *, resampling: Resampling = RESAMPLING, unseen: bool = True
) -> list[tuple[Estimate, ...]]:
    """:func:`bootstrap_means` of numbers in [0, 1], of several tables of units, [J, q + 1] each.

    Args:
        tables: The sums of the columns over the rows of each unit, and how many rows it has.
        unseen: Whether units that were not drawn may lie at the ends, as those of outcomes do.
    """
    return [
        _shares(means, table, unseen=unseen)
        for table, means in zip(tables, _statistics_of_each(ratios, tables, resampling=resampling), strict=True)
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
    units = unit_sums([gain], None, len(gain))
    if np.count_nonzero(units[:, 0]) >= FEW_UNITS:
        (mean,) = bootstrap_statistics(ratios, units, resampling=resampling)
        low, high = mean.ends
        # Differences are symmetric with long tails, which the studentized quantiles of few units do not reach.
        half = float(stdtrit(len(units) - 1, TAILS[0])) * standard_error(ratios, units)
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
    units = unit_sums(columns, clusters, len(columns[0]))
    if len(units) < 2:
        return 0.0
    influence = influence_values(ratios, units)
    if np.min(np.ptp(influence, axis=0)) < 1e-12:
        return 0.0
    first, second = influence.T - influence.mean(axis=0)[:, None]
    return float(min(max(first @ second / np.sqrt((first @ first) * (second @ second)), -1.0), 1.0))


def _shares(means: Sequence[Estimate], units: Array, *, unseen: bool) -> tuple[Estimate, ...]:
    """Shares with the intervals that their units allow, from sums and weights of the units, [J, q + 1]."""
    weights = units[:, -1]
    unit_shares = units[:, :-1] / weights[:, None]
    above, below = np.count_nonzero(unit_shares > 0.0, axis=0), np.count_nonzero(unit_shares < 1.0, axis=0)
    # a share of 0 or 1 is not both above 0 and below 1
    num_extreme = 2 * len(units) - above - below
    rare = (len(units) < FEW_UNITS) | (np.minimum(above, below) < FEW_INFORMATIVE) | (num_extreme == len(units))
    equal_weights = bool(np.all(weights == weights[0]))
    num_effective = float(weights.sum() ** 2 / np.sum(weights**2))  # Kish's: J where all weigh the same
    shares: list[Estimate] = []
    for mean, by_wilson, unit_mean in zip(means, rare.tolist(), unit_shares.mean(axis=0).tolist(), strict=True):
        value = mean.value or 0.0
        ends = wilson_interval(value, num_effective)
        if not equal_weights and 0.0 < value < 1.0:
            # A few heavy units are still a few: what share of units they are is known so well; odds scale by weight.
            odds = value / (1 - value) * (1 - unit_mean) / unit_mean
            low, high = (odds * end / (1 - end + odds * end) for end in wilson_interval(unit_mean, num_effective))
            ends = min(low, ends[0]), max(high, ends[1])
        if not by_wilson and mean.interval is not None:
            # Resamples that draw hardly any of a few rare units have next to no standard error, and the studentized
            # interval then runs away; Wilson's covers whatever the units in [0, 1] are.
            # Nor do they know of units that none of J was, such as a prompt that never passes among easy ones: a share
            # of 1 - 0.025^(1/J) goes unseen that often, and near an end it may be at the other.
            part = (1 - QUANTILES[0] ** (1 / num_effective)) * unseen
            low = min(mean.ends[0], value * (1 - part)) if value > 1 - _NEAR_AN_END else mean.ends[0]
            high = max(mean.ends[1], value + (1 - value) * part) if value < _NEAR_AN_END else mean.ends[1]
            ends = max(low, ends[0]), min(high, ends[1])
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
    a measurement just off its ends. No interval for one unit, or where all are equal: nothing says how much they vary.

    >>> (rank,) = bounded_means([[2.0], [2.5], [3.0]], low=1, high=8)
    >>> round(rank.low, 2), rank.value, round(rank.high, 2)
    (1.61, 2.5, 4.07)
    >>> bounded_means([[1.0]] * 8, low=1, high=16)[0].interval is None
    True
    """
    span = high - low or 1.0
    shares = (np.asarray(values, dtype=np.float64) - low) / span
    shares = np.where(shares < _EQUAL, 0.0, np.where(shares > 1 - _EQUAL, 1.0, shares))
    units = unit_sums(shares.T, clusters, len(shares))
    if len(units) >= FEW_UNITS:
        means = bootstrap_shares([units], resampling=resampling, unseen=False)[0]
    else:
        means = tuple(_student(column, units[:, -1]) for column in units[:, :-1].T)
    estimates = []
    for mean, column in zip(means, units.T[:-1], strict=True):
        ends = None if np.ptp(column / units[:, -1]) <= _EQUAL else mean.interval
        bottom, top = (None, None) if ends is None else (low + span * end for end in ends)
        value = low + span * (mean.value or 0.0)
        estimates.append(Estimate(value=value, low=bottom, high=top, num_units=mean.num_units))
    return tuple(estimates)


def _student(sums: Array, weights: Array) -> Estimate:
    """Mean of a share with Student's interval on its logit, logit m +- t(J - 1) se / (m (1 - m))."""
    num_units, mean = len(sums), float(sums.sum() / weights.sum())
    if num_units < 2 or not 0 < mean < 1:
        return Estimate(value=mean, num_units=num_units)
    error = standard_error(ratios, np.column_stack([sums, weights]))
    half = student_quantile(num_units - 1) * error / (mean * (1 - mean))
    center = float(logit(mean))
    return Estimate(value=mean, low=float(expit(center - half)), high=float(expit(center + half)), num_units=num_units)

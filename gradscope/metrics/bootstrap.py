"""Intervals by resampling units (prompts): the studentized bootstrap, and Wilson's where shares are rare.

Legend: J units, m columns, B resamples, q statistics. Everything that is estimated here is a smooth function of sums
over units, so one resample is a row of counts times the table of units, and the jackknife is a subtraction: no
statistic is ever called in a Python loop.

The bootstrap-t (Efron 1982; Hall 1988, Annals of Statistics 16) divides the error of each resample by that resample's
own standard error, and so learns the skewness that pass rates near 0 or 1 have. The standard error is that of the
jackknife's influence values, which need no derivative of the statistic. Where resampling cannot work it is not used:
with fewer than 10 units a mean gets Student's t and a share Wilson's interval; so does a share that fewer than 6 units
move, and one whose units are all 0 or 1. ``benchmarks/coverage.py`` measures what these intervals cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.intervals import COVERAGE, difference_interval, wilson_interval

Array = NDArray[np.float64]
Interval = tuple[float, float]
Statistic = Callable[[Array], Array]
"""From column sums over units [..., m] to the statistics [..., q]."""

NUM_RESAMPLES = 2000
MIN_UNITS = 5
"""With fewer units there is no interval, except Wilson's for a share."""
FEW_UNITS = 10
"""With fewer units the quantiles of resamples are noise."""
FEW_INFORMATIVE = 6
"""A share that fewer units than this keep away from its end (0 or 1) is a rare event to the resamples."""
MANY_UNITS = 20_000
"""With more units the studentized error is normal, and nothing is resampled."""

_TAILS = np.array([(1 + COVERAGE) / 2, (1 - COVERAGE) / 2])
_CHUNK = 1_000_000
"""Draws made at once: bounds the memory, never the result."""


def bootstrap_statistics(
    statistic: Statistic, units: ArrayLike, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[Estimate, ...]:
    """Functions of sums over units, with studentized intervals from the same resamples.

    Args:
        statistic: From column sums [..., m] to the statistics [..., q]; called on all resamples at once.
        units: One row a unit, [J, m]; a unit is what was drawn independently, a prompt with all its groups.
        num_resamples: Resamples, B.
        seed: Seed of the resampling.

    Returns:
        q estimates. No interval where there are fewer than 5 units or the statistic does not vary with them.

    Raises:
        ValueError: There is no unit, or a number is not finite.

    Example:
        >>> shares = [[1.0, 2.0], [0.0, 2.0], [2.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 2.0]]
        >>> (ratio,) = bootstrap_statistics(lambda sums: sums[..., :1] / sums[..., 1:], shares)
        >>> round(ratio.value, 4), ratio.low < ratio.value < ratio.high
        (0.4167, True)
    """
    table = np.asarray(units, dtype=np.float64)
    if table.ndim != 2 or not len(table):
        raise ValueError(f"units are a non-empty table, got shape {table.shape}")
    values = np.asarray(statistic(table.sum(axis=0)), dtype=np.float64)
    if not (np.all(np.isfinite(table)) and np.all(np.isfinite(values))):
        raise ValueError("units and their statistics are finite numbers")
    intervals = _student_intervals(statistic, table, values, num_resamples, seed)
    return tuple(_estimate(value, ends, len(table)) for value, ends in zip(values, intervals, strict=True))


def influence_values(statistic: Statistic, units: ArrayLike) -> Array:
    """How much each unit moves each statistic: (J - 1) (mean of the jackknife - jackknife without the unit).

    Args:
        statistic: From column sums [..., m] to the statistics [..., q].
        units: [J, m].

    Returns:
        [J, q]; for a mean these are the deviations from it.

    Example:
        >>> influence_values(lambda sums: sums[..., :1] / sums[..., 1:], [[0.0, 1.0], [1.0, 1.0], [5.0, 1.0]]).tolist()
        [[-2.0], [-1.0], [3.0]]
    """
    table = np.asarray(units, dtype=np.float64)
    jackknifed = np.asarray(statistic(table.sum(axis=0) - table), dtype=np.float64)
    return np.asarray((len(table) - 1) * (jackknifed.mean(axis=0) - jackknifed), dtype=np.float64)


def bootstrap_means(
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    share: bool = True,
) -> tuple[Estimate, ...]:
    """Means of columns over rows, intervals by resampling clusters of rows.

    Args:
        values: One column a quantity, [rows, q].
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit. Groups of one prompt at
            different steps stay together.
        num_resamples: Resamples.
        seed: Seed of the resampling.
        share: Whether the values lie in [0, 1]; then so do the intervals, and Wilson's is used where the bootstrap
            cannot work.

    Returns:
        q estimates, each of the mean over rows; undefined without rows.

    Raises:
        ValueError: There is not one cluster a row, or a share lies outside [0, 1].

    Example:
        >>> shares = bootstrap_means([[0.0, 1.0]] * 30)
        >>> [(round(mean.low, 3), mean.value, round(mean.high, 3)) for mean in shares]
        [(0.0, 0.0, 0.114), (0.886, 1.0, 1.0)]
    """
    table = np.asarray(values, dtype=np.float64)
    if not len(table):
        return tuple(Estimate.because("there is nothing to average") for _ in range(table.shape[-1]))
    if share and (np.any(table < 0) or np.any(table > 1)):
        raise ValueError("shares lie in [0, 1]")
    units = cluster_sums(np.column_stack([table, np.ones(len(table))]), clusters)
    means = bootstrap_statistics(_means, units, num_resamples=num_resamples, seed=seed)
    if not share:
        return means
    return tuple(_share(mean, units[:, column], units[:, -1]) for column, mean in enumerate(means))


def bootstrap_mean(
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
    share: bool = True,
) -> Estimate:
    """One mean over rows: :func:`bootstrap_means` for a single column.

    Args:
        values: [rows].
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit.
        num_resamples: Resamples.
        seed: Seed of the resampling.
        share: Whether the values lie in [0, 1].

    Returns:
        The estimate.

    Example:
        >>> mean = bootstrap_mean([0.0, 1.0] * 20)
        >>> round(mean.low, 2), mean.value, round(mean.high, 2)
        (0.35, 0.5, 0.65)
    """
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    (mean,) = bootstrap_means(column, clusters, num_resamples=num_resamples, seed=seed, share=share)
    return mean


def bootstrap_difference(
    first: ArrayLike,
    second: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Mean of second minus first, two shares paired by row: both sides of a resample draw the same prompts.

    Where few units differ the interval is that of gains minus losses, each with Wilson's: two policies that agree on
    all of 30 prompts are not known to be equal.

    Args:
        first: In [0, 1], [rows].
        second: In [0, 1], [rows], in the same order.
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit.
        num_resamples: Resamples.
        seed: Seed of the resampling.

    Returns:
        The estimate.

    Raises:
        ValueError: The two differ in length, or a share lies outside [0, 1].

    Example:
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
    gain = after - before
    units = cluster_sums(np.column_stack([gain, np.ones(len(gain))]), clusters)
    (mean,) = bootstrap_statistics(_means, units, num_resamples=num_resamples, seed=seed)
    if len(units) >= FEW_UNITS and np.count_nonzero(units[:, 0]) >= FEW_INFORMATIVE:
        return mean
    value, size = mean.value or 0.0, _effective_units(units[:, -1])
    won, lost = (float(np.sum(np.maximum(sign * units[:, 0], 0.0)) / units[:, -1].sum()) for sign in (1, -1))
    ends = difference_interval(won, wilson_interval(won, size), lost, wilson_interval(lost, size))
    return _estimate(value, ends, len(units))


def cluster_sums(table: ArrayLike, clusters: ArrayLike | None) -> Array:
    """Rows summed by cluster.

    Args:
        table: [rows, m].
        clusters: The cluster of each row, numbers or strings, [rows]; None: each row is its own.

    Returns:
        [J, m], in the order of the clusters' first rows.

    Raises:
        ValueError: There is not one cluster a row.

    Example:
        >>> cluster_sums([[1.0], [2.0], [4.0]], ["b", "a", "b"]).tolist()
        [[5.0], [2.0]]
    """
    rows = np.asarray(table, dtype=np.float64)
    if clusters is None:
        return rows
    labels = np.asarray(clusters)
    if labels.shape != (len(rows),):
        raise ValueError(f"{len(rows)} rows need {len(rows)} clusters, got shape {labels.shape}")
    _, first, index = np.unique(labels, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), rows.shape[1]))
    np.add.at(sums, index, rows)
    return np.asarray(sums[np.argsort(first)], dtype=np.float64)


def _means(sums: Array) -> Array:
    return np.asarray(sums[..., :-1] / sums[..., -1:], dtype=np.float64)


def _student_intervals(
    statistic: Statistic, units: Array, values: Array, num_resamples: int, seed: int
) -> list[Interval | None]:
    """One interval a statistic; None where there is none."""
    num_units = len(units)
    if num_units < MIN_UNITS:
        return [None] * len(values)
    influence = influence_values(statistic, units)
    errors = np.sqrt(np.sum(influence**2, axis=0) / (num_units * (num_units - 1)))
    tiny = 1e-12 * np.maximum(np.abs(values), 1.0)
    quantiles = _t_quantiles(statistic, units, values, influence, np.maximum(errors, tiny), num_resamples, seed)
    lows, highs = values - quantiles[0] * errors, values - quantiles[1] * errors
    return [
        (float(low), float(high)) if error > spread else None
        for low, high, error, spread in zip(lows, highs, errors, tiny, strict=True)
    ]


def _t_quantiles(
    statistic: Statistic, units: Array, values: Array, influence: Array, errors: Array, num_resamples: int, seed: int
) -> Array:
    """Upper and lower quantile of the studentized error of each statistic, [2, q]."""
    num_units, num_columns = units.shape
    normal = np.repeat(stdtrit(num_units - 1, _TAILS)[:, None], len(values), axis=1)
    if not FEW_UNITS <= num_units <= MANY_UNITS:
        return np.asarray(normal, dtype=np.float64)
    studentized = []
    for sums in _resampled_sums(np.column_stack([units, influence, influence**2]), num_resamples, seed):
        first, second = np.split(sums[:, num_columns:] / num_units, 2, axis=1)
        own = np.sqrt(np.maximum(second - first**2, 0.0) / (num_units - 1))
        # A resample that draws no unit of a rare kind has no spread, and nothing to say about the error.
        usable = own > 1e-6 * errors
        studentized.append(
            np.where(usable, (statistic(sums[:, :num_columns]) - values) / np.where(usable, own, 1), np.nan)
        )
    errors_of_resamples = np.concatenate(studentized)
    known = np.mean(np.isfinite(errors_of_resamples), axis=0) > 0.5
    normal[:, known] = np.nanquantile(errors_of_resamples[:, known], _TAILS, axis=0)
    return np.asarray(normal, dtype=np.float64)


def _resampled_sums(units: Array, num_resamples: int, seed: int) -> Iterator[Array]:
    """Column sums of resamples, in chunks [b, m] that add up to B rows."""
    rng = np.random.default_rng(seed)
    num_units = len(units)
    rows = max(1, min(num_resamples, _CHUNK // num_units))
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        drawn = rng.integers(num_units, size=(size, num_units), dtype=np.int64)
        drawn += num_units * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * num_units).reshape(size, num_units)
        yield counts.astype(np.float64) @ units


def _share(mean: Estimate, sums: Array, weights: Array) -> Estimate:
    """A share with the interval that its units allow."""
    value, of_unit = mean.value or 0.0, sums / weights
    whole = bool(np.all(weights == weights[0]) and np.all((of_unit == 0.0) | (of_unit == 1.0)))
    informative = min(np.count_nonzero(of_unit > 0.0), np.count_nonzero(of_unit < 1.0))
    rare = len(sums) < FEW_UNITS or informative < FEW_INFORMATIVE
    if whole or rare or mean.low is None or mean.high is None:
        return _estimate(value, wilson_interval(value, _effective_units(weights)), len(sums))
    return _estimate(value, (max(mean.low, 0.0), min(mean.high, 1.0)), len(sums))


def _effective_units(weights: Array) -> float:
    """Kish's effective number of units: J where all weigh the same."""
    return float(weights.sum() ** 2 / np.sum(weights**2))


def _estimate(value: float, ends: Interval | None, num_units: int) -> Estimate:
    if ends is None:
        return Estimate.exact(value, num_units=num_units)
    # The studentized interval also corrects a bias, and may then leave the plain value out.
    low, high = min(ends[0], float(value)), max(ends[1], float(value))
    return Estimate(value=float(value), low=low, high=high, num_units=num_units)

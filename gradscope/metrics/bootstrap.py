"""Intervals by resampling units (prompts): bias-corrected and accelerated (BCa), and Wilson's where that has no spread.

Legend: J units, m columns, B resamples, q statistics. Everything that is estimated here is a smooth function of sums
over units, so one resample is a row of counts times the table of units, and the jackknife is a subtraction: no
statistic is ever called in a Python loop.

BCa is Efron's (1987). It departs from the textbook in two places. A share whose resamples are all equal (0 of 30
prompts) gets Wilson's score interval over units, because [0, 0] would claim certainty. Where nearly all resamples lie
on one side of the value, so that resampling adds a bias of its own (a variance between small steps), the interval is
the value +- 1.96 jackknife standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from gradscope.estimate import Estimate

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From column sums over units [..., m] to the statistics [..., q]."""

NUM_RESAMPLES = 2000
MIN_UNITS = 5
"""With fewer units a resample says next to nothing; there is then no interval, except Wilson's for a plain share."""

_COVERAGE = 0.95
_ONE_SIDED = 0.95
"""With more of the resamples than this on one side of the value, they are biased."""
_CHUNK = 1_000_000
"""Draws made at once: bounds the memory, never the result."""


def bootstrap_statistics(
    statistic: Statistic, units: ArrayLike, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[Estimate, ...]:
    """Functions of sums over units, with intervals from the same resamples.

    Args:
        statistic: From column sums [..., m] to the statistics [..., q]; called on all resamples at once.
        units: One row a unit, [J, m]; a unit is what was drawn independently, a prompt with all its groups.
        num_resamples: Resamples, B.
        seed: Seed of the resampling.

    Returns:
        q estimates. No interval where there are fewer than 5 units or the resamples are all equal.

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
    total = table.sum(axis=0)
    values = np.asarray(statistic(total), dtype=np.float64)
    if not (np.all(np.isfinite(table)) and np.all(np.isfinite(values))):
        raise ValueError("units and their statistics are finite numbers")
    if len(table) < MIN_UNITS:
        return tuple(Estimate.exact(value, num_units=len(table)) for value in values)
    resampled = np.concatenate([statistic(sums) for sums in _resampled_sums(table, num_resamples, seed)])
    jackknifed = np.asarray(statistic(total - table))
    intervals = (_bca(*column) for column in zip(values, resampled.T, jackknifed.T, strict=True))
    return tuple(_estimate(value, ends, len(table)) for value, ends in zip(values, intervals, strict=True))


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
        share: Whether the values lie in [0, 1]; then Wilson's interval is used where the bootstrap has no spread.

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
    means = bootstrap_statistics(
        lambda sums: sums[..., :-1] / sums[..., -1:], units, num_resamples=num_resamples, seed=seed
    )
    return tuple(or_wilson(mean) if share else mean for mean in means)


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
    """Mean of second minus first, paired by row: both sides of a resample draw the same prompts.

    Args:
        first: [rows].
        second: [rows], in the same order.
        clusters: The unit that each row belongs to, [rows]; None: each row is a unit.
        num_resamples: Resamples.
        seed: Seed of the resampling.

    Returns:
        The estimate; no interval where all differences are equal.

    Raises:
        ValueError: The two differ in length.

    Example:
        >>> bootstrap_difference([0.0, 0.5, 0.0, 0.0, 0.5], [0.5, 0.5, 0.5, 1.0, 0.5]).value
        0.4
    """
    before, after = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if before.shape != after.shape:
        raise ValueError(f"paired values have one shape, got {before.shape} and {after.shape}")
    return bootstrap_mean(after - before, clusters, num_resamples=num_resamples, seed=seed, share=False)


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


def wilson_interval(share: float, num_units: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share over units (Wilson 1927).

    Args:
        share: The share, in [0, 1]; it need not be a whole number of units.
        num_units: Units, at least 1.

    Returns:
        Both ends.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.0, 30)]
        [0.0, 0.1135]
    """
    z = float(ndtri((1 + _COVERAGE) / 2))
    shrink = 1 + z * z / num_units
    center = (share + z * z / (2 * num_units)) / shrink
    half = z * np.sqrt(share * (1 - share) / num_units + (z / (2 * num_units)) ** 2) / shrink
    # At the boundaries the exact end is 0 or 1; rounding must not leave 1e-17 there.
    low = 0.0 if share == 0.0 else max(float(center - half), 0.0)
    high = 1.0 if share == 1.0 else min(float(center + half), 1.0)
    return low, high


def or_wilson(share: Estimate) -> Estimate:
    """A share with Wilson's interval over its units where it has none of its own.

    Args:
        share: An estimate in [0, 1].

    Returns:
        The estimate itself where it is undefined or has an interval.

    Example:
        >>> round(or_wilson(Estimate.exact(0.0, num_units=30)).high, 4)
        0.1135
    """
    if share.value is None or share.low is not None:
        return share
    low, high = wilson_interval(share.value, share.num_units)
    return Estimate(value=share.value, low=low, high=high, num_units=share.num_units)


# Column sums of resamples, in chunks [b, m] that add up to B rows.
def _resampled_sums(units: Array, num_resamples: int, seed: int) -> Iterator[Array]:
    rng = np.random.default_rng(seed)
    num_units = len(units)
    rows = max(1, min(num_resamples, _CHUNK // num_units))
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        drawn = rng.integers(num_units, size=(size, num_units), dtype=np.int64)
        drawn += num_units * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * num_units).reshape(size, num_units)
        yield counts.astype(np.float64) @ units


# Efron's BCa interval; None where the resamples have no spread.
def _bca(value: float, resampled: Array, jackknifed: Array) -> tuple[float, float] | None:
    spread = 1e-12 * max(abs(value), 1.0)
    if np.ptp(resampled) <= spread:
        return None
    num = len(resampled)
    # Ties with the value count half: a statistic of few units takes few values.
    below = np.sum(resampled < value - spread) + 0.5 * np.sum(np.abs(resampled - value) <= spread)
    deviations = np.mean(jackknifed) - jackknifed
    energy = float(np.sum(deviations**2))
    if max(below, num - below) > _ONE_SIDED * num:
        half = float(ndtri((1 + _COVERAGE) / 2)) * np.sqrt(energy * (len(deviations) - 1) / len(deviations))
        return float(value - half), float(value + half)
    bias = float(ndtri(below / num))
    acceleration = float(np.sum(deviations**3)) / (6 * energy**1.5) if energy > 0 else 0.0
    z = bias + ndtri(np.array([(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2]))
    low, high = np.quantile(resampled, ndtr(bias + z / (1 - acceleration * z)))
    return min(float(low), float(value)), max(float(high), float(value))


def _estimate(value: float, ends: tuple[float, float] | None, num_units: int) -> Estimate:
    if ends is None:
        return Estimate.exact(value, num_units=num_units)
    return Estimate(value=float(value), low=ends[0], high=ends[1], num_units=num_units)

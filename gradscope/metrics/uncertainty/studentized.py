"""The studentized bootstrap (bootstrap-t) of functions of sums over units, and rows summed by unit.

Legend: T tables, J units (clusters), m columns, B resamples, q statistics. Everything that is estimated here is a
smooth function of sums over units, so one resample is a row of counts times the table of units, and the jackknife is a
subtraction: no statistic is ever called in a Python loop.

The bootstrap-t (Efron 1982; Hall 1988, Annals of Statistics 16) divides the error of each resample by that resample's
own standard error, and so learns the skewness that pass rates near 0 or 1 have. The standard error is that of the
jackknife's influence values, which need no derivative of the statistic. ``scipy.stats.bootstrap`` has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from gradscope.metrics.uncertainty.intervals import COVERAGE, Interval, Resampling

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

_MOST_GAPS = 4  # numbers a row up to which integer clusters are counted rather than sorted


def cluster_numbers(clusters: ArrayLike) -> Numbers:
    """The clusters of rows, numbered from 0 on without a gap, in the order of the numbers or of the alphabet.

    >>> cluster_numbers(["b", "a", "b"]).tolist(), cluster_numbers([7, 3, 7]).tolist()
    ([1, 0, 1], [1, 0, 1])
    """
    return _numbered(np.asarray(clusters))[0]


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


def cluster_counts(kinds: Numbers, num_kinds: int, clusters: ArrayLike) -> Array:
    """How many rows of each of k kinds a cluster has, [J, k], in the order of the clusters' first rows.

    >>> cluster_counts(np.array([0, 1, 1]), 2, ["b", "a", "b"]).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    numbers, first = _numbered(np.asarray(clusters))
    counts = np.bincount(numbers * num_kinds + kinds, minlength=len(first) * num_kinds)
    return counts.reshape(len(first), num_kinds)[np.argsort(first)].astype(np.float64)


def _numbered(labels: NDArray[np.generic]) -> tuple[Numbers, Numbers]:
    """The number of each row's cluster, [rows], and the first row of each cluster, [J]."""
    integers = labels.astype(np.int64, copy=False) if np.issubdtype(labels.dtype, np.integer) else None
    if integers is None or not _is_dense(integers):
        _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
        return numbers, first
    first = np.full(int(integers.max(initial=-1)) + 1, len(integers))
    first[integers[::-1]] = np.arange(len(integers))[::-1]  # of several rows of a cluster the first is written last
    occurs = first < len(integers)
    if occurs.all():  # numbers without a gap are those asked for, and of a long log not copied
        return integers, first
    return np.asarray(np.cumsum(occurs) - 1, dtype=np.int64)[integers], first[occurs]


def _is_dense(labels: Numbers) -> bool:
    """Whether labels are numbers from 0 on without large gaps, which need no sorting."""
    return bool(labels.min(initial=0) >= 0 and labels.max(initial=0) <= _MOST_GAPS * len(labels))


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


def student_intervals(
    statistic: Statistic, tables: Sequence[Array], *, resampling: Resampling
) -> list[list[Interval | None]]:
    """The studentized interval of each statistic of each table of units, [J, m].

    Tables of the same number of units share the units that their resamples draw, and one product of matrices. None
    where there are too few units, or a statistic does not vary with them.
    """
    of_size: dict[int, list[int]] = {}
    for at, units in enumerate(tables):
        of_size.setdefault(len(units), []).append(at)
    by_table: dict[int, list[Interval | None]] = {}
    for num_units, alike in of_size.items():
        for start in range(0, len(alike), _TABLES):
            chunk = alike[start : start + _TABLES]
            units = np.stack([tables[at] for at in chunk])  # [T, J, m]
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
            for at, *of_table in zip(chunk, lows, highs, errors, tiny, strict=True):
                by_table[at] = [
                    (float(low), float(high)) if error > spread else None
                    for low, high, error, spread in zip(*of_table, strict=True)
                ]
    return [by_table[at] for at in range(len(tables))]


def _expanded_quantiles(influence: Array) -> Array:
    """The same for many units, [T, J, q]: the quantiles that resampling estimates, to second order (Hall 1992, 3.3).

    The studentized error of a statistic whose influence values have skewness g is below x with probability Phi(x) + g
    (2 x^2 + 1) phi(x) / (6 sqrt(J)). Upper and lower quantile of each statistic, [2, T, q].
    """
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
    studentized = []
    for sums in _resampled_sums(columns.swapaxes(0, 1).reshape(num_units, -1), resampling):
        of_tables = sums.reshape(len(sums), num_tables, -1)
        first, second = np.split(of_tables[..., num_columns:] / num_units, 2, axis=2)
        own = np.sqrt(np.maximum(second - first**2, 0.0) / (num_units - 1))
        # A resample that draws no unit of a rare kind has no spread, and nothing to say about the error.
        usable = own > 1e-6 * errors
        studentized.append(
            np.where(usable, (statistic(of_tables[..., :num_columns]) - values) / np.where(usable, own, 1), np.nan)
        )
    errors_of_resamples = np.concatenate(studentized)
    usable = np.isfinite(errors_of_resamples)
    always = np.all(usable, axis=0)
    mostly = ~always & (np.mean(usable, axis=0) > 0.5)
    quantiles[:, always] = np.quantile(errors_of_resamples[:, always], TAILS, axis=0)
    quantiles[:, mostly] = np.nanquantile(errors_of_resamples[:, mostly], TAILS, axis=0)
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

"""Rows that belong together: the groups of a prompt, whatever names it.

Legend: J clusters.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

_MOST_GAPS = 4
"""Numbers a row up to which clusters that are whole numbers are counted rather than sorted."""


def cluster_numbers(clusters: ArrayLike) -> Numbers:
    """The clusters of rows, numbered from 0 on without a gap.

    Args:
        clusters: The cluster of each row, numbers or strings, [rows].

    Returns:
        [rows], in an order of its own: that of the numbers or of the alphabet.

    Example:
        >>> cluster_numbers(["b", "a", "b"]).tolist(), cluster_numbers([7, 3, 7]).tolist()
        ([1, 0, 1], [1, 0, 1])
    """
    return _numbered(np.asarray(clusters))[0]


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
    return sums_of_columns(rows.T, clusters, len(rows))


def sums_of_columns(columns: Iterable[Array], clusters: ArrayLike, num_rows: int) -> Array:
    """The same of columns that are made one by one, so that those of a long table need not be there at once.

    Args:
        columns: m times [rows].
        clusters: As above.
        num_rows: How many rows each column has.

    Returns:
        [J, m], in the order of the clusters' first rows.

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


def cluster_counts(kinds: Numbers, num_kinds: int, clusters: ArrayLike) -> Array:
    """How many rows of each kind a cluster has.

    Args:
        kinds: The kind of each row, from 0 on, [rows].
        num_kinds: How many kinds there are, k.
        clusters: The cluster of each row, numbers or strings, [rows].

    Returns:
        [J, k], in the order of the clusters' first rows.

    Example:
        >>> cluster_counts(np.array([0, 1, 1]), 2, ["b", "a", "b"]).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    numbers, first = _numbered(np.asarray(clusters))
    counts = np.bincount(numbers * num_kinds + kinds, minlength=len(first) * num_kinds)
    return counts.reshape(len(first), num_kinds)[np.argsort(first)].astype(np.float64)


def _numbered(labels: NDArray[np.generic]) -> tuple[Numbers, Numbers]:
    """The number of each row's cluster, [rows], and the first row of each cluster, [J]."""
    if not np.issubdtype(labels.dtype, np.integer) or not _is_dense(labels.astype(np.int64)):
        _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
        return numbers, first
    whole = labels.astype(np.int64)
    first = np.full(int(whole.max(initial=-1)) + 1, len(whole))
    first[whole[::-1]] = np.arange(len(whole))[::-1]  # of several rows of a cluster the first is written last
    is_there = first < len(whole)
    return np.asarray(np.cumsum(is_there) - 1, dtype=np.int64)[whole], first[is_there]


def _is_dense(labels: Numbers) -> bool:
    """Whether labels are numbers from 0 on without large gaps, which need no sorting."""
    return bool(labels.min(initial=0) >= 0 and labels.max(initial=0) <= _MOST_GAPS * len(labels))

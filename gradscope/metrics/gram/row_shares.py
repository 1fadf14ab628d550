"""Which rows make up a sum: shares along it, cosines with it, and how few rows carry most of it.

Shapes: R gradient rows. All of it is read off the Gram matrix G of the rows: the sum's squared norm is 1'G1, and row i
has the inner product (G1)_i with it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import row_norms
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array, checked_gram


def projection_shares(gram: ArrayLike) -> Array:
    """Each row's part of the sum along the sum's own direction: (G1)_i / (1'G1).

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        Shares that add up to 1, [R]; negative for a row that pulls against the sum. NaN where the sum is zero.

    Example:
        >>> projection_shares([[9.0, 0.0], [0.0, 1.0]]).tolist()
        [0.9, 0.1]
    """
    matrix = checked_gram(gram)
    along = matrix.sum(axis=1)
    total = float(along.sum())
    return np.asarray(along / total if total > 0 else np.full(len(along), np.nan))


def cosines_to_sum(gram: ArrayLike) -> Array:
    """Cosine of each row with the sum of all rows: (G1)_i / (|g_i| |sum|).

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        Cosines, [R]; NaN for a zero row, and everywhere where the sum is zero.

    Example:
        >>> cosines_to_sum([[9.0, 0.0], [0.0, 16.0]]).tolist()
        [0.6, 0.8]
    """
    matrix = checked_gram(gram)
    along, norms = matrix.sum(axis=1), row_norms(matrix)
    scale = norms * math.sqrt(max(float(along.sum()), 0.0))
    scale[scale == 0.0] = np.nan
    return np.asarray(np.clip(along / scale, -1.0, 1.0))


def top_share(gram: ArrayLike, *, fraction: float = 0.1) -> Estimate:
    """Share of the summed row norms that the largest rows hold: sum of the top |g_i| / sum of all |g_i|.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].
        fraction: Which part of the rows is the top, rounded up to whole rows.

    Returns:
        A number from ``fraction`` (all rows alike) to 1; undefined where every row is zero.

    Example:
        >>> top_share([[9.0, 0.0], [0.0, 1.0]], fraction=0.5).value
        0.75
    """
    return share_of_largest(row_norms(gram), fraction=fraction)


def share_of_largest(norms: ArrayLike, *, fraction: float = 0.1) -> Estimate:
    """Share of a sum of norms that the largest of them hold.

    Args:
        norms: Norms of gradient rows, [R].
        fraction: Which part of the rows is the top, rounded up to whole rows.

    Returns:
        A number from ``fraction`` (all alike) to 1; undefined where every norm is zero.

    Example:
        >>> share_of_largest([3.0, 1.0], fraction=0.5).value
        0.75
    """
    ordered = np.sort(np.asarray(norms, dtype=np.float64))[::-1]
    total = float(ordered.sum())
    if total == 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(ordered))
    return Estimate.exact(float(ordered[: math.ceil(fraction * len(ordered))].sum()) / total, num_units=len(ordered))


def cosine_of_updates(gram: ArrayLike, first: ArrayLike, second: ArrayLike) -> Estimate:
    """Cosine of two weighted sums of the same rows: a'Kb / sqrt(a'Ka b'Kb).

    Args:
        gram: Gram matrix K of the score vectors, [R, R].
        first: Weights a, [R].
        second: Weights b, [R].

    Returns:
        A number from -1 to 1; undefined where a sum is zero.

    Example:
        >>> cosine_of_updates([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [1.0, 0.0]).value
        0.7071067811865475
    """
    matrix = checked_gram(gram)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lengths = float(a @ matrix @ a) * float(b @ matrix @ b)
    if lengths <= 0.0:
        return Estimate.undefined_because("an update without length has no direction", num_units=len(matrix))
    return Estimate.exact(min(1.0, max(-1.0, float(a @ matrix @ b) / math.sqrt(lengths))), num_units=len(matrix))

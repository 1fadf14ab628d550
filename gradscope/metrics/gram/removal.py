"""What a sum of gradient rows would be without some of them. Shapes: R gradient rows.

All of it is read off the Gram matrix G of the rows: without row i the sum has the squared norm 1'G1 - 2 (G1)_i + G_ii.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.metrics.gram.spectrum import Array, checked_gram


def norms_without(gram: ArrayLike) -> Array:
    """Norm of the sum of all rows but one.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        The norm without each row, [R].

    Example:
        >>> norms_without([[9.0, 0.0], [0.0, 16.0]]).tolist()
        [4.0, 3.0]
    """
    matrix = checked_gram(gram)
    along = matrix.sum(axis=1)
    return np.asarray(np.sqrt(np.clip(along.sum() - 2 * along + np.diag(matrix), 0.0, None)))


def removal_order(gram: ArrayLike, *, most: int) -> tuple[list[int], list[float]]:
    """Rows left out one after the other, each time the one without which the sum is shortest.

    Greedy: another set of as many rows may shorten the sum more.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].
        most: How many are left out at most; it ends before where no row makes the sum shorter.

    Returns:
        The rows in that order, and the norm of the sum after each.

    Example:
        >>> removal_order([[9.0, 0.0, 0.0], [0.0, 4.0, -2.0], [0.0, -2.0, 1.0]], most=2)
        ([0], [1.0])
    """
    matrix = checked_gram(gram)
    kept = np.ones(len(matrix), dtype=np.bool_)
    order: list[int] = []
    norms: list[float] = []
    total = float(matrix.sum())
    while len(order) < min(most, len(matrix)):
        squared = total - 2 * matrix @ kept + np.diag(matrix)
        best = int(np.argmin(np.where(kept, squared, np.inf)))
        if not squared[best] < total:
            break
        kept[best] = False
        total = max(float(squared[best]), 0.0)
        order.append(best)
        norms.append(float(np.sqrt(total)))
    return order, norms

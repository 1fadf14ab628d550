"""What training did to a weight matrix: where its update lies, and whether it grew in one direction.

Legend: W_0 the matrix before training [O, I], D = W_t - W_0 its update, T checkpoints.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, checked_gram, energy_rank

_NO_UPDATE = "the weights did not change"
PRINCIPAL_SHARE = 0.5
"""The principal subspace of W_0 holds this share of its energy."""


def principal_overlap(initial: ArrayLike, update: ArrayLike) -> tuple[Estimate, Estimate]:
    """Share of an update's energy in the principal subspace of W_0, and what a random update would have there.

    |U_k U_k' D V_k V_k'|_F^2 / |D|_F^2 with U_k, V_k the leading singular vectors of W_0, as many as hold half of
    |W_0|_F^2. A random update has k^2 / (O I) on average. A share below that is an update off the principal directions.

    Args:
        initial: W_0, [O, I].
        update: D, [O, I].

    Returns:
        The share and its null; undefined where either matrix is zero.

    Example:
        >>> share, null = principal_overlap([[3.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 2.0]])
        >>> share.value, null.value
        (0.0, 0.25)
    """
    weights, change = np.asarray(initial, dtype=np.float64), np.asarray(update, dtype=np.float64)
    energy = float(np.sum(change**2))
    if energy == 0.0:
        return Estimate.undefined_because(_NO_UPDATE), Estimate.undefined_because(_NO_UPDATE)
    left, values, right = np.linalg.svd(weights, full_matrices=False)
    rank = energy_rank(values, PRINCIPAL_SHARE).value
    if rank is None:
        none = Estimate.undefined_because("the weights before training are zero, so they have no principal subspace")
        return none, none
    k = int(rank)
    inside = left[:, :k].T @ change @ right[:k].T
    return Estimate.exact(min(float(np.sum(inside**2)) / energy, 1.0)), Estimate.exact(k * k / weights.size)


def linear_growth(gram: ArrayLike, num_updates: ArrayLike) -> Estimate:
    """Share of a trajectory's energy on the best straight line from W_0: D_t = t V.

    With the inner products of the updates D_t this is |sum t D_t|^2 / (sum t^2 sum |D_t|^2). 1 is growth at one speed
    in one direction.

    Args:
        gram: Inner products of the updates, [T, T].
        num_updates: t of each, [T].

    Returns:
        A number from 0 to 1; undefined with fewer than two checkpoints after the first, or without an update.

    Example:
        >>> linear_growth([[1.0, 2.0], [2.0, 4.0]], [10, 20]).value
        1.0
    """
    matrix, times = checked_gram(gram), np.asarray(num_updates, dtype=np.float64)
    if len(matrix) < 2:
        return Estimate.undefined_because("a single update lies on a line always", num_units=len(matrix))
    energy = float(np.trace(matrix))
    if energy <= 0.0:
        return Estimate.undefined_because(_NO_UPDATE, num_units=len(matrix))
    share = float(times @ matrix @ times) / (float(times @ times) * energy)
    return Estimate.exact(min(max(share, 0.0), 1.0), num_units=len(matrix))


def random_walk_gram(num_updates: ArrayLike) -> Array:
    """Expected inner products of the updates of a random walk: min(t_i, t_j).

    A walk of independent steps has no direction, and yet the largest of its principal components holds most of its
    energy: the null that rank-one dominance and straight growth are read against.

    Args:
        num_updates: t of each checkpoint, [T].

    Returns:
        [T, T].

    Example:
        >>> random_walk_gram([10, 20]).tolist()
        [[10.0, 10.0], [10.0, 20.0]]
    """
    times = np.asarray(num_updates, dtype=np.float64)
    return np.asarray(np.minimum(times[:, None], times[None, :]), dtype=np.float64)

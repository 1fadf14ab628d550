"""What a rank would be without the thing that it is said to show: four null models of a gradient matrix.

A low effective rank has several possible causes, and each null takes one of them away:

* ``unweighted`` the score vectors alone: what is low here is the policy's geometry, not the advantage's doing;
* ``shuffled`` the advantages dealt anew within each group: which rollout got which advantage no longer matters;
* ``signs`` the advantages' signs alone: their sizes no longer matter. Signs are a rotation, so without a zero advantage
  and without centering this null is ``unweighted`` exactly, whatever the signs;
* ``gaussian`` independent random rows of the same norms: no two rollouts have anything in common.

Legend: R rollouts, N rows of the matrix, P columns, D draws, K the Gram matrix of the score vectors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from gradscope.metrics.gram.spectrum import Array

NULLS = ("unweighted", "shuffled", "signs", "gaussian")
"""The names of the null models, in the order of tables."""


def num_draws(num_rows: int) -> int:
    """How often a random null of one matrix is drawn: small matrices vary more, large ones average within themselves.

    Returns:
        Draws, from 2 to 32.

    Example:
        >>> num_draws(2), num_draws(8), num_draws(128)
        (32, 16, 2)
    """
    return int(np.clip(128 // max(num_rows, 1), 2, 32))


def shuffled_within(advantages: ArrayLike, groups: ArrayLike, draws: int, *, seed: int = 0) -> Array:
    """Advantages dealt anew among the rollouts of each group.

    Args:
        advantages: [R].
        groups: The group of each rollout, whole numbers, [R].
        seed: The same seed deals the same way, whatever the advantages.

    Returns:
        [D, R].

    Raises:
        ValueError: There is not one group a rollout.

    Example:
        >>> shuffled_within([1.0, 2.0, 9.0], [0, 0, 1], 3).sum(axis=1).tolist()
        [12.0, 12.0, 12.0]
    """
    values, index = np.asarray(advantages, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    if values.ndim != 1 or index.shape != values.shape:
        raise ValueError(f"{values.size} advantages need as many groups, got shape {index.shape}")
    keys = np.random.default_rng(seed).random((draws, len(values)))
    dealt = np.empty((draws, len(values)))
    dealt[:, np.argsort(index, kind="stable")] = values[np.argsort(index + keys, axis=1)]
    return dealt


@lru_cache(maxsize=32)
def gaussian_cosines(num_rows: int, num_columns: int, draws: int, *, seed: int = 0) -> Array:
    """Cosines between independent Gaussian rows, without the rows: Bartlett's decomposition of a Wishart matrix.

    The Gram matrix of N Gaussian rows in P columns is L L' with L lower triangular, chi-distributed (P, P - 1, ...
    degrees of freedom) on its diagonal and normal below it (Bartlett 1933), so P may be billions.

    Returns:
        [D, N, N], ones on the diagonal.

    Example:
        >>> abs(gaussian_cosines(3, 10**9, 1).round(2)).tolist()
        [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]
    """
    rng = np.random.default_rng(seed)
    width = min(num_rows, num_columns)
    lower = np.tril(rng.normal(size=(draws, num_rows, width)), k=-1)
    freedom = num_columns - np.arange(width)
    diagonal = np.arange(width)
    lower[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom, size=(draws, width)))
    units = lower / np.linalg.norm(lower, axis=-1, keepdims=True)
    return np.asarray(units @ units.swapaxes(-1, -2), dtype=np.float64)


def gaussian_matrix_values(num_rows: int, num_columns: int) -> Array:
    """Singular values of a matrix of independent standard normal entries, in the limit of large matrices.

    The quantiles of the law of Marchenko and Pastur (1967) at (i - 1/2)/m, m the smaller side. For the smallest
    matrices the law is an approximation: the effective rank is 5 % too high at 4 x 4, 2.5 % at 8 x 8, 0.5 % at 64 x 64.

    Returns:
        Descending, [min(N, P)].

    Example:
        >>> gaussian_matrix_values(2, 10**8).round(0).tolist()
        [10001.0, 9999.0]
    """
    small, large = sorted((num_rows, num_columns))
    ratio = small / large
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    # x = middle - half cos(t): the density's square roots at both ends become smooth in t
    angle = (np.arange(20_000) + 0.5) * np.pi / 20_000
    eigenvalue = (high + low) / 2 - (high - low) / 2 * np.cos(angle)
    mass = np.cumsum(np.sin(angle) ** 2 / eigenvalue)
    quantiles = np.interp((np.arange(small) + 0.5) / small, mass / mass[-1], eigenvalue)
    return np.asarray(np.sqrt(quantiles[::-1] * large), dtype=np.float64)

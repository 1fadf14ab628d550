"""What the singular values of a gradient matrix count as: six answers to "how many directions are there?".

Legend: N rows of the matrix X, P columns, s its singular values in descending order, G = X X' its Gram matrix [N, N].

All are counts of one spectrum and always come in this order (Renyi entropies of falling order):
``1 <= stable_rank <= participation_ratio <= spectral_entropy_rank <= effective_rank <= rank <= min(N, P)``.
Public code computes at least four of them under the name "effective rank"; here each name has one formula. Every
function first divides by the largest singular value, so the scale of the gradient does not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate

Array = NDArray[np.float64]

ZERO_MATRIX = "the matrix is zero: no row carries a gradient"
_ROUNDING = 1e-12


def singular_values_from_gram(gram: ArrayLike) -> Array:
    """Singular values of X from its Gram matrix: the square roots of the eigenvalues of X X'.

    Eigenvalues that rounding made negative count as zero. The square root halves the digits: values below
    :func:`noise_floor` are arithmetic, not signal.

    Args:
        gram: Symmetric positive semi-definite matrix, [N, N].

    Returns:
        Singular values, descending, [N].

    Raises:
        ValueError: The matrix is not square, not finite or not symmetric.

    Example:
        >>> singular_values_from_gram([[9.0, 0.0], [0.0, 16.0]]).tolist()
        [4.0, 3.0]
    """
    matrix = checked_gram(gram)
    scale = float(np.max(np.abs(matrix), initial=0.0))
    if scale == 0.0:
        return np.zeros(len(matrix))
    eigenvalues = np.linalg.eigvalsh(matrix / scale)[::-1]
    return np.asarray(np.sqrt(np.clip(eigenvalues, 0.0, None)) * np.sqrt(scale), dtype=np.float64)


def checked_gram(gram: ArrayLike) -> Array:
    """A Gram matrix as float64, exactly symmetric.

    Args:
        gram: Matrix, [N, N].

    Returns:
        The mean of the matrix and its transpose, [N, N].

    Raises:
        ValueError: The matrix is not square, not finite or not symmetric.
    """
    matrix = np.asarray(gram, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a Gram matrix is square, got shape {matrix.shape}")
    if not np.all(np.isfinite(matrix)):
        raise ValueError("a Gram matrix holds finite numbers")
    if np.max(np.abs(matrix - matrix.T), initial=0.0) > 1e-4 * np.max(np.abs(matrix), initial=0.0):
        raise ValueError("a Gram matrix is symmetric")
    return np.asarray((matrix + matrix.T) / 2, dtype=np.float64)


def center_gram(gram: ArrayLike) -> Array:
    """The Gram matrix after the mean row was subtracted from every row: H G H with H = I - 11'/N.

    Args:
        gram: Gram matrix of the rows, [N, N].

    Returns:
        Gram matrix of the centered rows, [N, N].

    Example:
        >>> center_gram([[1.0, 1.0], [1.0, 1.0]]).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """
    matrix = checked_gram(gram)
    means = matrix.mean(axis=0)
    return np.asarray(matrix - means[:, None] - means[None, :] + matrix.mean(), dtype=np.float64)


def noise_floor(gram: ArrayLike, relative_error: float) -> float:
    """The singular value below which the Gram matrix says nothing: sqrt(N e max_i G_ii).

    An entry of G is known to ``relative_error * max_i G_ii``, so G is known to N times that in spectral norm, and no
    eigenvalue moves by more (Weyl's inequality).

    Args:
        gram: Gram matrix, [N, N].
        relative_error: Error of an entry over the largest entry; at least float64's 2.2e-16.

    Returns:
        The floor, in the unit of the singular values.

    Example:
        >>> round(noise_floor([[4.0, 0.0], [0.0, 4.0]], 1e-8), 6)
        0.000283
    """
    matrix = checked_gram(gram)
    error = max(relative_error, float(np.finfo(np.float64).eps))
    return float(np.sqrt(len(matrix) * error) * np.sqrt(np.max(np.diag(matrix), initial=0.0)))


def effective_rank(singular_values: ArrayLike) -> Estimate:
    """The exponential of the Shannon entropy of s / sum s (Roy & Vetterli 2007).

    Args:
        singular_values: Non-negative, any order, [N].

    Returns:
        A number from 1 to N; undefined for a zero matrix.

    Example:
        >>> round(effective_rank([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
        3.7
    """
    scaled = _scaled(singular_values)
    return _zero(singular_values) if scaled is None else _counted(_exp_entropy(scaled), scaled)


def spectral_entropy_rank(singular_values: ArrayLike) -> Estimate:
    """The exponential of the Shannon entropy of s^2 / sum s^2: :func:`effective_rank` on shares of energy.

    Args:
        singular_values: Non-negative, any order, [N].

    Returns:
        A number from 1 to N; undefined for a zero matrix.

    Example:
        >>> round(spectral_entropy_rank([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
        3.11
    """
    scaled = _scaled(singular_values)
    return _zero(singular_values) if scaled is None else _counted(_exp_entropy(scaled**2), scaled)


def stable_rank(singular_values: ArrayLike) -> Estimate:
    """The squared Frobenius norm over the squared spectral norm: sum s^2 / s_1^2.

    Args:
        singular_values: Non-negative, any order, [N].

    Returns:
        A number from 1 to N; undefined for a zero matrix.

    Example:
        >>> round(stable_rank([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
        3.02
    """
    scaled = _scaled(singular_values)
    return _zero(singular_values) if scaled is None else _counted(float(np.sum(scaled**2)), scaled)


def participation_ratio(singular_values: ArrayLike) -> Estimate:
    """(sum s^2)^2 / sum s^4.

    Args:
        singular_values: Non-negative, any order, [N].

    Returns:
        A number from 1 to N; undefined for a zero matrix.

    Example:
        >>> round(participation_ratio([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
        3.04
    """
    scaled = _scaled(singular_values)
    if scaled is None:
        return _zero(singular_values)
    return _counted(float(np.sum(scaled**2) ** 2 / np.sum(scaled**4)), scaled)


def numerical_rank(singular_values: ArrayLike, floor: float) -> Estimate:
    """The number of singular values above a floor.

    Args:
        singular_values: Non-negative, any order, [N].
        floor: Singular values up to this are arithmetic; see :func:`noise_floor`.

    Returns:
        A whole number; undefined for a zero matrix.

    Example:
        >>> numerical_rank([3.0, 1.0, 1e-9], floor=1e-6).value
        2.0
    """
    scaled = _scaled(singular_values)
    if scaled is None:
        return _zero(singular_values)
    return _counted(float(np.sum(np.asarray(singular_values, dtype=np.float64) > floor)), scaled)


def energy_rank(singular_values: ArrayLike, share: float) -> Estimate:
    """The fewest singular values whose squares make up a share of sum s^2.

    Args:
        singular_values: Non-negative, any order, [N].
        share: The share of energy, above 0 and at most 1.

    Returns:
        A whole number from 1 to N; undefined for a zero matrix.

    Raises:
        ValueError: The share is not above 0 and at most 1.

    Example:
        >>> energy_rank([3.0, 1.0, 1.0], 0.9).value
        2.0
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of energy is above 0 and at most 1, got {share}")
    scaled = _scaled(singular_values)
    if scaled is None:
        return _zero(singular_values)
    energy = np.cumsum(scaled**2)
    enough = energy >= share * energy[-1] * (1 - _ROUNDING)
    return _counted(float(np.argmax(enough) + 1), scaled)


# Singular values over the largest, descending; None for a zero matrix.
def _scaled(singular_values: ArrayLike) -> Array | None:
    values = np.asarray(singular_values, dtype=np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError("singular values are finite, non-negative numbers in one dimension")
    largest = float(np.max(values, initial=0.0))
    return None if largest == 0.0 else np.sort(values / largest)[::-1]


def _exp_entropy(weights: Array) -> float:
    shares = weights[weights > 0] / np.sum(weights)
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _counted(value: float, scaled: Array) -> Estimate:
    return Estimate.exact(value, num_units=len(scaled))


def _zero(singular_values: ArrayLike) -> Estimate:
    return Estimate.because(ZERO_MATRIX, num_units=np.asarray(singular_values).size)

"""What a change does to the singular values of a matrix and to the directions that they belong to.

Legend: W_0 and W_t the matrix before and after, [O, I], s their singular values, m = min(O, I).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, energy_rank
from gradscope.metrics.gram.weight_update import PRINCIPAL_SHARE

_NO_UPDATE = "the weights did not change"
_NO_FRAME = "one of the two matrices is zero, so it has no principal directions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingularFrame:
    """The singular value decomposition of a matrix."""

    left: Array
    """Left singular vectors, [O, m]."""
    values: Array
    """Singular values, descending, [m]."""
    right: Array
    """Right singular vectors, [m, I]."""


def frame_of(matrix: ArrayLike) -> SingularFrame:
    """The decomposition of a matrix, [O, I].

    Returns:
        Its singular values and both kinds of directions.

    Example:
        >>> frame_of([[0.0, 2.0], [1.0, 0.0]]).values.tolist()
        [2.0, 1.0]
    """
    left, values, right = np.linalg.svd(np.asarray(matrix, dtype=np.float64), full_matrices=False)
    return SingularFrame(left=left, values=values, right=right)


def spectrum_drift(before: SingularFrame, after: SingularFrame, update_norm: float) -> Estimate:
    """How much of a change goes into the singular values: |s(W_t) - s(W_0)|_2 / |W_t - W_0|_F.

    At most 1, which a change along the singular directions reaches (Mirsky 1960); near 0 the singular values are
    inherited, and their directions turn.

    Args:
        update_norm: |W_t - W_0|_F.

    Returns:
        A number from 0 to 1; undefined without a change.

    Example:
        >>> before, after = frame_of([[3.0, 0.0], [0.0, 1.0]]), frame_of([[3.0, 0.0], [0.0, 2.0]])
        >>> spectrum_drift(before, after, 1.0).value
        1.0
    """
    if update_norm <= 0.0:
        return Estimate.undefined_because(_NO_UPDATE)
    return Estimate.exact(min(float(np.linalg.norm(after.values - before.values)) / update_norm, 1.0))


def principal_angle(before: SingularFrame, after: SingularFrame) -> Estimate:
    """How far the principal directions turn: the angle whose squared cosine is the mean over those of both sides.

    The cosines of the principal angles between the spans of the k leading left singular vectors of W_0 and W_t are the
    singular values of U_0' U_t (Bjorck and Golub 1973), likewise on the right; k singular values of W_0 hold half of
    its energy. The mean is taken, since a single direction at the edge may change places with the next for nothing.

    Returns:
        Degrees from 0 to 90; undefined where a matrix is zero.

    Example:
        >>> turned = principal_angle(frame_of([[3.0, 0.0], [0.0, 1.0]]), frame_of([[0.0, 3.0], [1.0, 0.0]]))
        >>> round(turned.value)  # the left direction stays, the right one turns by 90 degrees
        45
    """
    rank = energy_rank(before.values, PRINCIPAL_SHARE).value
    if rank is None or not after.values.any():
        return Estimate.undefined_because(_NO_FRAME)
    k = int(rank)
    sides = (before.left[:, :k].T @ after.left[:, :k], before.right[:k] @ after.right[:k].T)
    mean = sum(float(np.sum(side**2)) for side in sides) / (2 * k)
    return Estimate.exact(float(np.degrees(np.arccos(np.sqrt(min(mean, 1.0))))))


def unrelated_matrix(shape: tuple[int, int], rank: int, *, seed: int = 0) -> Array:
    """A matrix of a rank that is related to nothing: independent normal entries, or the product of two such factors.

    Args:
        shape: (O, I).
        rank: At most m; m for entries that are all independent.
        seed: The same seed draws the same matrix.

    Returns:
        Of Frobenius norm 1, [O, I].

    Example:
        >>> frame_of(unrelated_matrix((4, 3), 1)).values.round(6).tolist()
        [1.0, 0.0, 0.0]
    """
    drawn = np.random.default_rng(seed).normal(size=shape)
    if rank < min(shape):
        left, right = unrelated_factors(shape, rank, seed=seed)
        drawn = left @ right
    return np.asarray(drawn / np.linalg.norm(drawn), dtype=np.float64)


def unrelated_factors(shape: tuple[int, int], rank: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Two factors of independent normal entries, such as those of an adapter that has learned nothing.

    Args:
        shape: (O, I).
        seed: The same seed draws the same factors.

    Returns:
        The factors, [O, r] and [r, I].

    Example:
        >>> [factor.shape for factor in unrelated_factors((4, 3), 2)]
        [(4, 2), (2, 3)]
    """
    rng = np.random.default_rng(seed)
    return rng.normal(size=(shape[0], rank)), rng.normal(size=(rank, shape[1]))


def factor_alignment(left: ArrayLike, right: ArrayLike) -> Estimate:
    """How far two factors work together: |B A|_F / (|B|_F |A|_F).

    Args:
        left: B, [O, r].
        right: A, [r, I].

    Returns:
        A number from 0 to 1, which is 1/sqrt(r) for orthonormal factors; undefined where either is zero.

    Example:
        >>> factor_alignment([[1.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]).value
        1.0
    """
    b, a = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    scale = float(np.linalg.norm(b) * np.linalg.norm(a))
    if scale == 0.0:
        return Estimate.undefined_because("one of the two factors is still zero")
    return Estimate.exact(min(float(np.linalg.norm(b @ a)) / scale, 1.0))

"""What training did to a weight matrix: where its update lies, and what became of its singular values and directions.

Legend: W_0 and W_t the matrix before and after [O, I], D = W_t - W_0 its update, T checkpoints, s singular values,
m = min(O, I).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, checked_gram, energy_rank

_NO_UPDATE = "the weights did not change"
PRINCIPAL_SHARE = 0.5  # the principal subspace of W_0 holds this share of its energy


def linear_growth(gram: ArrayLike, num_updates: ArrayLike) -> Estimate:
    """Share of a trajectory's energy on the best straight line from W_0: D_t = t V.

    With the inner products of the updates D_t, [T, T], and t of each, [T], this is |sum t D_t|^2 / (sum t^2 sum
    |D_t|^2). 1 is growth at one speed in one direction. Undefined with fewer than two checkpoints after the first, or
    without an update.

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
    """Expected inner products of the updates of a random walk: min(t_i, t_j), [T, T].

    A walk of independent steps has no direction, and yet the largest of its principal components holds most of its
    energy: the null that rank-one dominance and straight growth are read against.

    >>> random_walk_gram([10, 20]).tolist()
    [[10.0, 10.0], [10.0, 20.0]]
    """
    times = np.asarray(num_updates, dtype=np.float64)
    return np.asarray(np.minimum(times[:, None], times[None, :]), dtype=np.float64)


_NO_FRAME = "one of the two matrices is zero, so it has no principal directions"


class SingularFrame(Struct, frozen=True, kw_only=True):
    """The singular value decomposition of a matrix."""

    left: Array  # left singular vectors, [O, m]
    values: Array  # singular values, descending, [m]
    right: Array  # right singular vectors, [m, I]


def frame_of(matrix: ArrayLike) -> SingularFrame:
    """The singular value decomposition of a matrix, [O, I].

    >>> frame_of([[0.0, 2.0], [1.0, 0.0]]).values.tolist()
    [2.0, 1.0]
    """
    left, values, right = np.linalg.svd(np.asarray(matrix, dtype=np.float64), full_matrices=False)
    return SingularFrame(left=left, values=values, right=right)


def principal_overlap(initial: SingularFrame, update: ArrayLike) -> tuple[Estimate, Estimate]:
    """Share of an update's energy in the principal subspace of W_0, and what a random update would have there.

    |U_k U_k' D V_k V_k'|_F^2 / |D|_F^2 with U_k, V_k the leading singular vectors of W_0, as many as hold half of
    |W_0|_F^2. A random update has k^2 / (O I) on average. A share below that is an update off the principal directions.
    Undefined where either matrix is zero.

    >>> share, null = principal_overlap(frame_of([[3.0, 0.0], [0.0, 1.0]]), [[0.0, 0.0], [0.0, 2.0]])
    >>> share.value, null.value
    (0.0, 0.25)
    """
    change = np.asarray(update, dtype=np.float64)
    energy = float(np.sum(change**2))
    if energy == 0.0:
        return Estimate.undefined_because(_NO_UPDATE), Estimate.undefined_because(_NO_UPDATE)
    rank = energy_rank(initial.values, PRINCIPAL_SHARE).value
    if rank is None:
        none = Estimate.undefined_because("the weights before training are zero, so they have no principal subspace")
        return none, none
    k = int(rank)
    inside = initial.left[:, :k].T @ change @ initial.right[:k].T
    return Estimate.exact(min(float(np.sum(inside**2)) / energy, 1.0)), Estimate.exact(k * k / change.size)


def spectrum_drift(before: SingularFrame, after: SingularFrame, update_norm: float) -> Estimate:
    """How much of a change goes into the singular values: |s(W_t) - s(W_0)|_2 / |W_t - W_0|_F.

    At most 1, which a change along the singular directions reaches (Mirsky 1960); near 0 the singular values are
    inherited, and their directions turn. Undefined without a change.

    >>> before, after = frame_of([[3.0, 0.0], [0.0, 1.0]]), frame_of([[3.0, 0.0], [0.0, 2.0]])
    >>> spectrum_drift(before, after, 1.0).value
    1.0
    """
    if update_norm <= 0.0:
        return Estimate.undefined_because(_NO_UPDATE)
    return Estimate.exact(min(float(np.linalg.norm(after.values - before.values)) / update_norm, 1.0))


def principal_angle(before: SingularFrame, after: SingularFrame) -> Estimate:
    """How far the principal directions turn, in degrees: its squared cosine is the mean over those of both sides.

    The cosines of the principal angles between the spans of the k leading left singular vectors of W_0 and W_t are the
    singular values of U_0' U_t (Bjorck and Golub 1973), likewise on the right; k singular values of W_0 hold half of
    its energy. It is a mean, since a single direction at the edge may swap with the next without any meaning.
    Undefined where a matrix is zero.

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
    """A matrix [O, I] of norm 1 that is related to nothing: normal entries, or, below rank m, two factors of such.

    >>> frame_of(unrelated_matrix((4, 3), 1)).values.round(6).tolist()
    [1.0, 0.0, 0.0]
    """
    drawn = np.random.default_rng(seed).normal(size=shape)
    if rank < min(shape):
        left, right = unrelated_factors(shape, rank, seed=seed)
        drawn = left @ right
    return np.asarray(drawn / np.linalg.norm(drawn), dtype=np.float64)


def unrelated_factors(shape: tuple[int, int], rank: int, *, seed: int = 0) -> tuple[Array, Array]:
    """Two factors of independent normal entries, [O, r] and [r, I], as of an adapter that has learned nothing.

    >>> [factor.shape for factor in unrelated_factors((4, 3), 2)]
    [(4, 2), (2, 3)]
    """
    rng = np.random.default_rng(seed)
    return rng.normal(size=(shape[0], rank)), rng.normal(size=(rank, shape[1]))


def factor_alignment(left: ArrayLike, right: ArrayLike) -> Estimate:
    """How far two factors B [O, r] and A [r, I] work together: |B A|_F / (|B|_F |A|_F), 1/sqrt(r) for orthonormal ones.

    Undefined where either is zero.

    >>> factor_alignment([[1.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]).value
    1.0
    """
    b, a = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    scale = float(np.linalg.norm(b) * np.linalg.norm(a))
    if scale == 0.0:
        return Estimate.undefined_because("one of the two factors is still zero")
    return Estimate.exact(min(float(np.linalg.norm(b @ a)) / scale, 1.0))

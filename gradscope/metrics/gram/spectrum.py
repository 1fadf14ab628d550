"""Ranks of a gradient matrix from its singular values, and null models that take a rank's supposed cause away.

Legend: R rollouts, N rows of the matrix X, P columns, D draws, s the singular values of X in descending order,
G = X X' its Gram matrix [N, N], K that of the score vectors; W_0 and W_t a weight matrix before and after [O, I], D =
W_t - W_0 its update, T checkpoints, m = min(O, I). Singular values may be given in any order, [N]; ranks are
undefined for a zero matrix.

Six answers to "how many directions are there?" always come in this order (Renyi entropies of falling order):
``1 <= stable_rank <= participation_ratio <= spectral_entropy_rank <= effective_rank <= rank <= min(N, P)``.
Public code computes at least four of them under the name "effective rank"; here each name has one formula. Every
function first divides by the largest singular value, so the scale of the gradient does not matter.

A low effective rank has several possible causes, and each null model takes one of them away:

* ``unweighted`` the score vectors alone: what is low here is the policy's geometry, not the advantage's doing;
* ``shuffled`` the advantages dealt anew within each group: which rollout got which advantage no longer matters;
* ``signs`` the advantages' signs alone: their sizes no longer matter. Signs are a rotation, so without a zero advantage
  and without centering this null is ``unweighted`` exactly, whatever the signs;
* ``gaussian`` independent random rows of the same norms: no two rollouts have anything in common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate

Array = NDArray[np.float64]

ZERO_MATRIX = "the matrix is zero: no row carries a gradient"
_ROUNDING = 1e-12


def singular_values_from_gram(gram: ArrayLike) -> Array:
    """Singular values of X, descending, [N], from its Gram matrix: the square roots of the eigenvalues of X X'.

    Eigenvalues that rounding made negative count as zero. The square root halves the digits: values below
    :func:`noise_floor` are arithmetic, not signal.

    Raises:
        ValueError: The matrix is not square, not finite or not symmetric.

    >>> singular_values_from_gram([[9.0, 0.0], [0.0, 16.0]]).tolist()
    [4.0, 3.0]
    """
    matrix = checked_gram(gram)
    # rollouts of dead groups are zero rows, often most of them, and the work grows with the cube of the rows
    live = np.flatnonzero(matrix.any(axis=1))
    values = np.zeros(len(matrix))
    values[: len(live)] = singular_values_from_grams(matrix[np.ix_(live, live)])
    return values


def singular_values_from_grams(grams: Array) -> Array:
    """:func:`singular_values_from_gram` of many Gram matrices of one size at once, [..., N, N], not checked.

    >>> singular_values_from_grams(np.array([[[9.0, 0.0], [0.0, 16.0]], [[0.0, 0.0], [0.0, 0.0]]])).tolist()
    [[4.0, 3.0], [0.0, 0.0]]
    """
    scale = np.max(np.abs(grams), axis=(-2, -1), keepdims=True, initial=0.0)
    scale = np.where(scale > 0, scale, 1.0)
    eigenvalues = np.linalg.eigvalsh(grams / scale)[..., ::-1]
    return np.asarray(np.sqrt(np.clip(eigenvalues, 0.0, None) * scale[..., 0]), dtype=np.float64)


def singular_values_of_rows(rows: Array, *, centered: bool = False) -> Array:
    """Singular values, descending, [..., N], of matrices of no fewer rows than columns, [..., N, C], from X' X.

    >>> singular_values_of_rows(np.array([[3.0], [4.0], [0.0]])).tolist()
    [5.0, 0.0, 0.0]
    """
    matrix = rows - rows.mean(axis=-2, keepdims=True) if centered else rows
    values = np.zeros(rows.shape[:-1])
    values[..., : rows.shape[-1]] = singular_values_from_grams(matrix.swapaxes(-1, -2) @ matrix)
    return values


def checked_gram(gram: ArrayLike) -> Array:
    """A Gram matrix [N, N] as float64, exactly symmetric: the mean of the matrix and its transpose.

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


def center_grams(grams: Array) -> Array:
    """Gram matrices [..., N, N] after the mean row was subtracted from every row: H G H with H = I - 11'/N.

    >>> center_grams(np.eye(2)[None]).tolist()
    [[[0.5, -0.5], [-0.5, 0.5]]]
    """
    means = grams.mean(axis=-1, keepdims=True)
    grand_means = means.mean(axis=-2, keepdims=True)
    return np.asarray(grams - means - means.swapaxes(-1, -2) + grand_means, dtype=np.float64)


def noise_floor(gram: ArrayLike, relative_error: float) -> float:
    """The singular value below which the Gram matrix says nothing: sqrt(N e max_i G_ii).

    An entry of G is known to ``relative_error * max_i G_ii``, so G is known to N times that in spectral norm, and no
    eigenvalue moves by more (Weyl's inequality). At best ``relative_error`` is float64's 2.2e-16. The floor is in the
    unit of the singular values.

    >>> round(noise_floor([[4.0, 0.0], [0.0, 4.0]], 1e-8), 6)
    0.000283
    """
    squared_norms = np.diagonal(np.asarray(gram, dtype=np.float64))
    error = max(relative_error, float(np.finfo(np.float64).eps))
    return float(np.sqrt(len(squared_norms) * error) * np.sqrt(np.max(squared_norms, initial=0.0)))


def effective_rank(singular_values: ArrayLike) -> Estimate:
    """The exponential of the Shannon entropy of s / sum s (Roy & Vetterli 2007); undefined for a zero matrix.

    >>> round(effective_rank([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
    3.7
    """
    return _count(singular_values, effective_ranks)


def effective_ranks(singular_values: Array) -> Array:
    """:func:`effective_rank` of many matrices of one size at once, [..., N]; NaN for a zero matrix.

    >>> effective_ranks(np.array([[1.0, 1.0], [5.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    total = np.sum(singular_values, axis=-1, keepdims=True)
    shares = np.divide(singular_values, total, out=np.zeros(singular_values.shape), where=total > 0)
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), np.nan)


def stable_rank(singular_values: ArrayLike) -> Estimate:
    """The squared Frobenius norm over the squared spectral norm: sum s^2 / s_1^2.

    >>> round(stable_rank([1.0, 1.0, 1.0, 0.1, 0.1]).value, 2)
    3.02
    """
    return _count(singular_values, lambda scaled: np.sum(scaled**2))


def rank_estimates(singular_values: ArrayLike, floor: float) -> dict[str, Estimate]:
    """Every rank by its name in the catalogue; singular values up to a floor are arithmetic, see :func:`noise_floor`.

    >>> ranks = rank_estimates([1.0, 1.0, 1.0, 0.1, 0.1], 0.5)
    >>> [round(rank.value, 2) for rank in ranks.values()]
    [3.7, 3.11, 3.02, 3.04, 3.0, 0.01, 3.0, 3.0]
    """
    is_signal = np.sort(np.asarray(singular_values, dtype=np.float64))[::-1] > floor
    counts: dict[str, Callable[[Array], ArrayLike]] = {  # of the values over the largest, descending
        "effective_rank": effective_ranks,
        "spectral_entropy_rank": lambda scaled: effective_ranks(scaled**2),
        "stable_rank": lambda scaled: np.sum(scaled**2),
        "participation_ratio": lambda scaled: np.sum(scaled**2) ** 2 / np.sum(scaled**4),
        "numerical_rank": lambda _: np.sum(is_signal),
        "frac_energy_below_floor": lambda scaled: np.sum(scaled[~is_signal] ** 2) / np.sum(scaled**2),
    }
    ranks = {name: _count(singular_values, count) for name, count in counts.items()}
    return ranks | {f"energy_rank_{share}": energy_rank(singular_values, share / 100) for share in (90, 99)}


def rank_counts(singular_values: Array) -> Array:
    """Effective rank, stable rank, participation ratio and the share of sum s^2 in the two largest, of many matrices.

    From singular values, descending, [..., N], to [..., 4]; NaN for a zero matrix.

    >>> rank_counts(np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])).round(3).tolist()
    [[2.0, 2.0, 2.0, 1.0], [4.0, 4.0, 4.0, 0.5]]
    """
    largest = singular_values[..., :1]
    squares = np.divide(singular_values, largest, out=np.zeros(singular_values.shape), where=largest > 0) ** 2
    total = np.where(largest[..., 0] > 0, squares.sum(axis=-1), np.nan)
    participation = total**2 / np.maximum(np.sum(squares**2, axis=-1), 1.0)
    leading = squares[..., :2].sum(axis=-1) / total
    return np.stack([effective_ranks(singular_values), total, participation, leading], axis=-1)


def energy_rank(singular_values: ArrayLike, share: float) -> Estimate:
    """The fewest singular values whose squares make up a share of sum s^2.

    Raises:
        ValueError: The share is not above 0 and at most 1.

    >>> energy_rank([3.0, 1.0, 1.0], 0.9).value
    2.0
    """
    if not 0 < share <= 1:
        raise ValueError(f"a share of energy is above 0 and at most 1, got {share}")

    def fewest(scaled: Array) -> np.intp:
        energy = np.cumsum(scaled**2)
        return np.argmax(energy >= share * energy[-1] * (1 - _ROUNDING)) + 1

    return _count(singular_values, fewest)


def _count(singular_values: ArrayLike, count: Callable[[Array], ArrayLike]) -> Estimate:
    """A number of the singular values over the largest, descending."""
    values = np.array(singular_values, dtype=np.float64)
    if values.ndim == 1:
        values.sort()  # NaN sorts last, where the next line sees it
    if values.ndim != 1 or (values.size and not (values[0] >= 0.0 and values[-1] < np.inf)):
        raise ValueError("singular values are finite, non-negative numbers in one dimension")
    if not values.size or values[-1] == 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=values.size)
    return Estimate(value=float(np.asarray(count(values[::-1] / values[-1]))), num_units=len(values))


NULLS = ("unweighted", "shuffled", "signs", "gaussian")  # the names of the null models, in the order of tables


def num_draws(num_rows: int) -> int:
    """How often a random null of one matrix is drawn: small matrices vary more, large ones average within themselves.

    >>> num_draws(2), num_draws(8), num_draws(128)
    (32, 16, 2)
    """
    return int(np.clip(128 // max(num_rows, 1), 2, 32))


def shuffled_within(advantages: ArrayLike, groups: ArrayLike, draws: int, *, seed: int = 0) -> Array:
    """Advantages [R] permuted among the rollouts of each group, integers [R], several times, [D, R].

    The same seed deals the same way, whatever the advantages.

    Raises:
        ValueError: There is not one group a rollout.

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
def gaussian_directions(num_rows: int, num_columns: int, draws: int) -> Array:
    """Independent Gaussian rows of length 1 up to a rotation, [D, N, min(N, P)], by Bartlett's decomposition.

    The Gram matrix of N Gaussian rows in P columns is L L' with L lower triangular, chi-distributed (P, P - 1, ...
    degrees of freedom) on its diagonal and normal below it (Bartlett 1933), so P may be billions.

    >>> abs(gaussian_directions(3, 10**9, 1).round(2)).tolist()
    [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]
    """
    rng = np.random.default_rng(0)
    width = min(num_rows, num_columns)
    lower = np.tril(rng.normal(size=(draws, num_rows, width)), k=-1)
    freedom = num_columns - np.arange(width)
    diagonal = np.arange(width)
    lower[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom, size=(draws, width)))
    return np.asarray(lower / np.linalg.norm(lower, axis=-1, keepdims=True), dtype=np.float64)


def gaussian_matrix_values(num_rows: int, num_columns: int) -> Array:
    """Singular values, descending, of a matrix [N, P] of standard normal entries, in the limit of large matrices.

    The quantiles of the law of Marchenko and Pastur (1967) at (i - 1/2)/m, m the smaller side. For the smallest
    matrices the law is an approximation: the effective rank is 5 % too high at 4 x 4, 2.5 % at 8 x 8, 0.5 % at 64 x 64.

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
        unknown = Estimate.undefined_because("the weights before training are zero, so they have no principal subspace")
        return unknown, unknown
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

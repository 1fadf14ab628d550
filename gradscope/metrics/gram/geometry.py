"""Angles between gradient rows, and the share of each row in their sum: quadratic forms in the Gram matrix.

Legend: R rollouts, X the matrix of their gradient rows [R, P], G = X X' its Gram matrix [R, R], the ``gram`` of most
functions, K the Gram matrix of the score vectors (rows before they are multiplied by their advantage), J groups. The
sum of the rows has the squared norm 1'G1, row i the inner product (G1)_i with it, and without row i the sum has 1'G1 -
2 (G1)_i + G_ii.

Sparsity has five definitions on the norms of the rows. A step can be sparse because entire groups are dead
(``zero_groups``, ``zero_rows``), because few rollouts outweigh the rest (``small_rows``), or in between (``hoyer``,
``gini``). The definitions disagree by design; each keeps its name. Shares are undefined without rows, or where every
row is zero.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array, checked_gram

_COLLINEAR = 1e-10  # two class means whose Gram of unit vectors has a smaller eigenvalue than this are one direction
_NOTHING = 1e-6  # a share of the rows' energy up to this is arithmetic: Gram matrices come from models in float32
CHANNELS = ("shared_directions", "shared_energy", "shared_sum", "shared_kept", "residual_kept")
"""The numbers that :func:`channels` returns, in its order."""
GRAD_NORM_TOLERANCE = 1e-5
"""Float32 arithmetic in another order gives 1e-7; the smallest real discrepancy seen gives 1e-4."""
EXACTLY = 1e-6  # relative error that arithmetic in float32 has, and in bfloat16, with 1e-4, is chance
NEAR = 100.0  # this many tolerances off, a norm may still be the logged one in float32: the step's own rounding decides
ROUNDING_FLOOR = 1e-6
"""Below this share of the score vectors' Frobenius norm a norm is rounding, of log-probabilities that float32 keeps to
2e-7: it matches zero."""


def gradient_gram(score_gram: ArrayLike, advantages: ArrayLike) -> Array:
    """Gram of the gradient rows A_i s_i: diag(A) K diag(A), [R, R], from K and one advantage a rollout, [R].

    Raises:
        ValueError: The shapes do not go together or an advantage is not finite.

    >>> gradient_gram([[1.0, 0.5], [0.5, 1.0]], [2.0, -1.0]).tolist()
    [[4.0, -1.0], [-1.0, 1.0]]
    """
    matrix = checked_gram(score_gram)
    weights = np.asarray(advantages, dtype=np.float64)
    if weights.shape != (len(matrix),) or not np.all(np.isfinite(weights)):
        raise ValueError(f"{len(matrix)} finite advantages are needed, got shape {weights.shape}")
    return np.asarray(weights[:, None] * matrix * weights[None, :], dtype=np.float64)


def batch_norm(gram: ArrayLike) -> float:
    """Norm of the sum of all rows: sqrt(1' G 1), the step's gradient norm; 0 for a sum that rounding made negative.

    >>> batch_norm([[9.0, 0.0], [0.0, 16.0]])
    5.0
    """
    return float(np.sqrt(max(float(np.sum(checked_gram(gram))), 0.0)))


def meets_logged(norm: float, logged: float, floor: float = 0.0) -> bool:
    """Whether two norms differ by no more than rounding in float32, or than what is rounding whatever they are.

    >>> meets_logged(2.00001, 2.0), meets_logged(2.0002, 2.0), meets_logged(3e-9, 0.0, floor=1e-8)
    (True, False, True)
    """
    return abs(norm - logged) <= max(GRAD_NORM_TOLERANCE * abs(logged), floor)


def row_norms(gram: ArrayLike) -> Array:
    """Norm of each row: sqrt(G_ii), [R].

    >>> row_norms([[9.0, 0.0], [0.0, 16.0]]).tolist()
    [3.0, 4.0]
    """
    return np.asarray(np.sqrt(np.clip(np.diag(checked_gram(gram)), 0.0, None)), dtype=np.float64)


def cosines(gram: ArrayLike) -> Array:
    """Cosine between each two rows: G_ij / sqrt(G_ii G_jj), [R, R]; NaN for a zero row, which has no direction.

    >>> cosines([[4.0, 2.0], [2.0, 4.0]]).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    matrix = checked_gram(gram)
    norms = row_norms(matrix)
    norms[norms == 0.0] = np.nan
    return np.asarray(np.clip(matrix / norms[:, None] / norms[None, :], -1.0, 1.0), dtype=np.float64)


def cancellation(gram: ArrayLike) -> Estimate:
    """|sum of rows| / sum of |row|: 1 when all rows pull one way, 0 when they cancel; undefined where all are zero.

    >>> round(cancellation([[1.0, 0.0], [0.0, 1.0]]).value, 4)
    0.7071
    """
    norms = row_norms(gram)
    total = float(np.sum(norms))
    if total == 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(norms))
    return Estimate.exact(min(batch_norm(gram) / total, 1.0), num_units=len(norms))


def channels(grams: ArrayLike) -> Array:
    """The sum of each matrix's rows split into what the rows share and what is each row's own.

    A direction is shared where the unit rows have more energy on it than any one of them could have alone: the
    eigenvalue of their cosine matrix is above 1. Unit rows, so that neither a long row nor a large advantage makes a
    direction of its own pass for a shared one; a row times -1 changes nothing either, so which directions are shared is
    blind to who was rewarded. With eigenvectors w_k, eigenvalues l_k and norms n the rows' coordinates on direction k
    are sqrt(l_k) w_k n, and their sum is the sum's. Under random signs of the rows the expected square of a sum is the
    rows' energy, so the expected energy of the sum over that of the rows is exactly 1 in either channel.

    From Gram matrices of gradient rows, [..., N, N]: the number of shared directions, the share of the rows' energy in
    them, the share of the sum's, and of each channel, shared and residual, the energy of the sum over that of the rows,
    [..., 5]. NaN where that is undefined: without a gradient, the share of a sum that cancels altogether, and of a
    channel without energy.

    >>> channels([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 2.0]]).round(9).tolist()
    [1.0, 0.5, 0.0, 0.0, 1.0]
    """
    matrices = np.asarray(grams, dtype=np.float64)
    norms = np.sqrt(np.clip(np.diagonal(matrices, axis1=-2, axis2=-1), 0.0, None))
    units = np.divide(1.0, norms, out=np.zeros(norms.shape), where=norms > 0)
    values, vectors = np.linalg.eigh(np.clip(matrices * units[..., :, None] * units[..., None, :], -1.0, 1.0))
    on_direction = np.sqrt(np.clip(values, 0.0, None))[..., None, :] * vectors * norms[..., :, None]
    energies, sums = np.sum(on_direction**2, axis=-2), np.sum(on_direction, axis=-2) ** 2
    is_shared = values > 1.0 + _NOTHING
    total = energies.sum(axis=-1)
    shared, added = np.where(is_shared, energies, 0.0).sum(axis=-1), np.where(is_shared, sums, 0.0).sum(axis=-1)
    residual, left = total - shared, sums.sum(axis=-1) - added
    return np.stack(
        [
            np.where(total > 0, is_shared.sum(axis=-1), np.nan),
            _over(shared, total, total),
            _over(added, added + left, total),
            _over(added, shared, total),
            _over(left, residual, total),
        ],
        axis=-1,
    )


def _over(part: Array, total: Array, energy: Array) -> Array:
    """A ratio of energies; NaN where the denominator is negligible against the rows' energy."""
    shares = np.full(total.shape, np.nan)
    return np.asarray(np.divide(part, total, out=shares, where=total > _NOTHING * energy), dtype=np.float64)


def class_subspace_energy(gram: ArrayLike, passed: ArrayLike) -> Estimate:
    """Share of |X|_F^2 in the span of the mean passing row and the mean failing row, from G, [R, R], and flags, [R].

    With C [R, 2] the matrix that averages the rows of each class, the share is tr(G C (C'GC)^+ C'G) / tr(G). A share
    near 1 says that the group's gradient is the difference of two means. Two directions hold some energy of any few
    rows, so read it against R: R = 2 gives 1 always. Undefined where a class is empty or every row is zero.

    Raises:
        ValueError: There is not one flag a row.

    >>> class_subspace_energy([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]], [True, True, False]).value
    1.0
    """
    matrix = checked_gram(gram)
    flags = np.asarray(passed, dtype=bool)
    if flags.shape != (len(matrix),):
        raise ValueError(f"{len(matrix)} flags are needed, got shape {flags.shape}")
    if not flags.any() or flags.all():
        missing = "passed" if not flags.any() else "failed"
        return Estimate.undefined_because(f"no rollout {missing}, so there is no second class", num_units=len(flags))
    energy = float(np.trace(matrix))
    if energy <= 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(flags))
    averages = np.column_stack([flags / flags.sum(), ~flags / (~flags).sum()])
    inner = averages.T @ matrix @ averages / energy
    lengths = np.sqrt(np.clip(np.diag(inner), 0.0, None))
    # Unit means first: otherwise a short mean (one class with small advantages) would pass for rounding.
    units = averages[:, lengths > _COLLINEAR] / lengths[lengths > _COLLINEAR]
    coordinates = matrix @ units / energy
    inverse = np.linalg.pinv(units.T @ matrix @ units / energy, rcond=_COLLINEAR, hermitian=True)
    share = float(np.sum((coordinates @ inverse) * coordinates))
    return Estimate.exact(min(max(share, 0.0), 1.0), num_units=len(flags))


def group_sums(gram: ArrayLike, index: ArrayLike) -> Array:
    """Gram of the groups' summed rows, [J, J], from G and the group of each row, from 0 to J - 1, [R].

    Raises:
        ValueError: There is not one group number a row.

    >>> group_sums([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 4.0]], [0, 0, 1]).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    matrix = checked_gram(gram)
    groups = np.asarray(index, dtype=np.int64)
    if groups.shape != (len(matrix),) or np.any(groups < 0):
        raise ValueError(f"{len(matrix)} group numbers from 0 are needed, got shape {groups.shape}")
    return _gram_of_sums(np.eye(int(groups.max(initial=-1)) + 1)[groups].T, matrix)


def _gram_of_sums(weights: Array, gram: Array) -> Array:
    """W G W', [F, F]; zero where its terms cancel but for rounding, as those of equal completions do."""
    products, sizes = weights @ gram @ weights.T, np.abs(weights) @ np.abs(gram) @ np.abs(weights.T)
    products = np.where(np.abs(products) > _CANCELED * sizes, products, 0.0)
    return np.asarray((products + products.T) / 2, dtype=np.float64)


_CANCELED = 1e-6
"""Of the terms' sizes: gradients in float32 are known to 1e-7 of them."""


def update_gram(score_gram: ArrayLike, advantages: ArrayLike) -> Array:
    """Inner products of the updates of formulations: A K A', [F, F], one row of A a formulation, [F, R].

    Its :func:`cosines` are those between formulations.

    Raises:
        ValueError: The shapes do not go together.

    >>> update_gram([[1.0, 0.0], [0.0, 1.0]], [[1.0, -1.0], [1.0, 1.0]]).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    matrix, weights = checked_gram(score_gram), np.asarray(advantages, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[1] != len(matrix):
        raise ValueError(f"rows of {len(matrix)} advantages are needed, got shape {weights.shape}")
    return _gram_of_sums(weights, matrix)


def between_groups(gram: ArrayLike, index: ArrayLike) -> Estimate:
    """Share of |X|_F^2 in the groups' mean rows: sum over j of n_j |mean row of j|^2, over tr(G).

    The rest lies within groups and cancels in each group's sum. Undefined where every row is zero. Takes G, [R, R],
    and the group of each row as a number from 0 to J - 1, [R].

    >>> between_groups([[1.0, -1.0], [-1.0, 1.0]], [0, 0]).value
    0.0
    """
    matrix, groups = checked_gram(gram), np.asarray(index, dtype=np.int64)
    energy = float(np.trace(matrix))
    if energy <= 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(matrix))
    sums = np.diag(group_sums(matrix, groups))
    means = float(np.sum(sums / np.maximum(np.bincount(groups), 1)))
    return Estimate.exact(min(max(means / energy, 0.0), 1.0), num_units=len(matrix))


def projection_shares(gram: ArrayLike) -> Array:
    """Each row's part of the sum along the sum's own direction: (G1)_i / (1'G1), [R].

    They add up to 1; negative for a row that pulls against the sum, NaN where the sum is zero.

    >>> projection_shares([[9.0, 0.0], [0.0, 1.0]]).tolist()
    [0.9, 0.1]
    """
    matrix = checked_gram(gram)
    along = matrix.sum(axis=1)
    total = float(along.sum())
    return np.asarray(along / total if total > 0 else np.full(len(along), np.nan))


def cosines_to_sum(gram: ArrayLike) -> Array:
    """Cosine of each row with the sum of all rows: (G1)_i / (|g_i| |sum|), [R]; NaN where either is zero.

    >>> cosines_to_sum([[9.0, 0.0], [0.0, 16.0]]).tolist()
    [0.6, 0.8]
    """
    matrix = checked_gram(gram)
    along, norms = matrix.sum(axis=1), row_norms(matrix)
    scale = norms * math.sqrt(max(float(along.sum()), 0.0))
    scale[scale == 0.0] = np.nan
    return np.asarray(np.clip(along / scale, -1.0, 1.0))


def top_share(gram: ArrayLike) -> Estimate:
    """Share of the summed row norms that the largest tenth of the rows holds.

    >>> top_share([[9.0, 0.0], [0.0, 1.0]]).value
    0.75
    """
    return share_of_largest(row_norms(gram))


def share_of_largest(norms: ArrayLike, *, fraction: float = 0.1) -> Estimate:
    """Share of summed norms, [R], that the largest ``fraction`` of them holds, rounded up; undefined for zeros.

    >>> share_of_largest([3.0, 1.0], fraction=0.5).value
    0.75
    """
    ordered = np.sort(np.asarray(norms, dtype=np.float64))[::-1]
    total = float(ordered.sum())
    if total == 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(ordered))
    return Estimate.exact(float(ordered[: math.ceil(fraction * len(ordered))].sum()) / total, num_units=len(ordered))


def cosine_of_updates(gram: ArrayLike, first: ArrayLike, second: ArrayLike) -> Estimate:
    """Cosine of two sums of the same rows, weighed by a and b [R]: a'Kb / sqrt(a'Ka b'Kb); undefined if one is zero.

    >>> cosine_of_updates([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [1.0, 0.0]).value
    0.7071067811865475
    """
    matrix = checked_gram(gram)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lengths = float(a @ matrix @ a) * float(b @ matrix @ b)
    if lengths <= 0.0:
        return Estimate.undefined_because("an update without length has no direction", num_units=len(matrix))
    return Estimate.exact(min(1.0, max(-1.0, float(a @ matrix @ b) / math.sqrt(lengths))), num_units=len(matrix))


def norms_without(gram: ArrayLike) -> Array:
    """Norm of the sum of all rows without each row, [R].

    >>> norms_without([[9.0, 0.0], [0.0, 16.0]]).tolist()
    [4.0, 3.0]
    """
    matrix = checked_gram(gram)
    along = matrix.sum(axis=1)
    return np.asarray(np.sqrt(np.clip(along.sum() - 2 * along + np.diag(matrix), 0.0, None)))


def removal_order(gram: ArrayLike, *, max_rows: int) -> tuple[list[int], list[float]]:
    """Rows left out one by one, each time the one without which the sum is shortest, and the norm after each.

    Greedy: another set of as many rows may shorten the sum more. It ends after ``max_rows`` rows, or where none
    shortens it.

    >>> removal_order([[9.0, 0.0, 0.0], [0.0, 4.0, -2.0], [0.0, -2.0, 1.0]], max_rows=2)
    ([0], [1.0])
    """
    matrix = checked_gram(gram)
    remaining = np.ones(len(matrix), dtype=np.bool_)
    order, norms, total = list[int](), list[float](), float(matrix.sum())
    while len(order) < min(max_rows, len(matrix)):
        squared = total - 2 * matrix @ remaining + np.diag(matrix)
        best = int(np.argmin(np.where(remaining, squared, np.inf)))
        if not squared[best] < total:
            break
        remaining[best] = False
        total = max(float(squared[best]), 0.0)
        order.append(best)
        norms.append(float(np.sqrt(total)))
    return order, norms


SMALL = 0.01  # a row below this share of the largest row norm is small

_ALL_ZERO = "every row is zero"


def row_sparsity(norms: ArrayLike) -> dict[str, Estimate]:
    """Four definitions at once, under the names of ``StepGeometry.sparsity``, of the norms x.

    ``zero_rows`` is the share of rows that are exactly zero: rollouts with zero advantage, or without a token in the
    loss; ``small_rows`` the share below 1 % of the largest, zero rows among them; ``hoyer`` (sqrt(R) - sum x /
    sqrt(sum x^2)) / (sqrt(R) - 1), 0 for equal norms and 1 for a single row (Hoyer 2004), undefined for one row;
    ``gini`` the mean absolute difference of two norms over twice their mean, 0 for equal norms, (R - 1)/R for a single
    row. All but the first are undefined where every row is zero.

    >>> {name: round(estimate.value, 3) for name, estimate in row_sparsity([0.0, 0.0, 3.0, 4.0]).items()}
    {'zero_rows': 0.5, 'small_rows': 0.5, 'hoyer': 0.6, 'gini': 0.536}
    """
    values = _checked(norms)
    num_rows, largest = len(values), float(np.max(values, initial=0.0))
    exact = partial(Estimate.exact, num_units=num_rows)
    sparsity = dict.fromkeys(
        ("zero_rows", "small_rows", "hoyer", "gini"), Estimate.undefined_because(_ALL_ZERO, num_units=num_rows)
    )
    sparsity["zero_rows"] = (
        exact(float(np.mean(values == 0.0))) if num_rows else Estimate.undefined_because("there are no rows")
    )
    if num_rows < 2:
        reason = "one row has nothing to be compared with"
        sparsity["hoyer"] = Estimate.undefined_because(reason, num_units=num_rows)
    if largest == 0.0:
        return sparsity
    sparsity["small_rows"] = exact(float(np.mean(values < SMALL * largest)))
    scaled, root = values / largest, np.sqrt(num_rows)
    if num_rows > 1:
        sparsity["hoyer"] = exact(
            float(np.clip((root - np.sum(scaled) / np.sqrt(np.sum(scaled**2))) / (root - 1), 0.0, 1.0))
        )
    ordered, position = np.sort(scaled), 2 * np.arange(1, num_rows + 1) - num_rows - 1
    sparsity["gini"] = exact(max(float(np.sum(position * ordered) / (num_rows * np.sum(ordered))), 0.0))
    return sparsity


def zero_groups(norms: ArrayLike, groups: ArrayLike) -> Estimate:
    """Share of groups whose rows are all exactly zero, dead groups, from x and the group of each row, [R] each.

    >>> zero_groups([0.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"]).value
    0.5
    """
    values = _checked(norms)
    index = np.unique(np.asarray(groups), return_inverse=True)[1]
    if not len(values):
        return Estimate.undefined_because("there are no rows")
    live = np.bincount(index, weights=values != 0.0)
    return Estimate.exact(float(np.mean(live == 0)), num_units=len(live))


def _checked(norms: ArrayLike) -> Array:
    values = np.asarray(norms, dtype=np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError("row norms are finite, non-negative numbers in one dimension")
    return values

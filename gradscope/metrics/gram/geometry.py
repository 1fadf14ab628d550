"""How gradient rows lie to each other: every answer is a quadratic form in their Gram matrix, no row is needed.

Legend: R rollouts, X the matrix of their gradient rows [R, P], G = X X' its Gram matrix [R, R], K the Gram matrix of
the score vectors (rows before they are multiplied by their advantage), J groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, Array, checked_gram

_COLLINEAR = 1e-10
"""Two class means whose Gram of unit vectors has a smaller eigenvalue than this are one direction."""


def gradient_gram(score_gram: ArrayLike, advantages: ArrayLike) -> Array:
    """Gram of the gradient rows A_i s_i: diag(A) K diag(A).

    Args:
        score_gram: Gram matrix K of the score vectors, [R, R].
        advantages: One advantage a rollout, [R].

    Returns:
        Gram matrix of the gradient rows, [R, R].

    Raises:
        ValueError: The shapes do not go together or an advantage is not finite.

    Example:
        >>> gradient_gram([[1.0, 0.5], [0.5, 1.0]], [2.0, -1.0]).tolist()
        [[4.0, -1.0], [-1.0, 1.0]]
    """
    matrix = checked_gram(score_gram)
    weights = np.asarray(advantages, dtype=np.float64)
    if weights.shape != (len(matrix),) or not np.all(np.isfinite(weights)):
        raise ValueError(f"{len(matrix)} finite advantages are needed, got shape {weights.shape}")
    return np.asarray(weights[:, None] * matrix * weights[None, :], dtype=np.float64)


def batch_norm(gram: ArrayLike) -> float:
    """Norm of the sum of all rows: sqrt(1' G 1), the step's gradient norm.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        The norm; a sum that rounding made negative counts as zero.

    Example:
        >>> batch_norm([[9.0, 0.0], [0.0, 16.0]])
        5.0
    """
    return float(np.sqrt(max(float(np.sum(checked_gram(gram))), 0.0)))


def row_norms(gram: ArrayLike) -> Array:
    """Norm of each row: sqrt(G_ii).

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        Norms, [R].

    Example:
        >>> row_norms([[9.0, 0.0], [0.0, 16.0]]).tolist()
        [3.0, 4.0]
    """
    return np.asarray(np.sqrt(np.clip(np.diag(checked_gram(gram)), 0.0, None)), dtype=np.float64)


def cosines(gram: ArrayLike) -> Array:
    """Cosine between each two rows: G_ij / sqrt(G_ii G_jj).

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        Cosines, [R, R]; NaN in the row and column of a zero row, which has no direction.

    Example:
        >>> cosines([[4.0, 2.0], [2.0, 4.0]]).tolist()
        [[1.0, 0.5], [0.5, 1.0]]
    """
    matrix = checked_gram(gram)
    norms = row_norms(matrix)
    norms[norms == 0.0] = np.nan
    return np.asarray(np.clip(matrix / norms[:, None] / norms[None, :], -1.0, 1.0), dtype=np.float64)


def cancellation(gram: ArrayLike) -> Estimate:
    """|sum of rows| / sum of |row|: 1 when all rows pull one way, 0 when they cancel.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].

    Returns:
        A number from 0 to 1; undefined where every row is zero.

    Example:
        >>> round(cancellation([[1.0, 0.0], [0.0, 1.0]]).value, 4)
        0.7071
    """
    norms = row_norms(gram)
    total = float(np.sum(norms))
    if total == 0.0:
        return Estimate.undefined_because(ZERO_MATRIX, num_units=len(norms))
    return Estimate.exact(min(batch_norm(gram) / total, 1.0), num_units=len(norms))


def class_subspace_energy(gram: ArrayLike, passed: ArrayLike) -> Estimate:
    """Share of |X|_F^2 in the span of the mean passing row and the mean failing row.

    With C [R, 2] the matrix that averages the rows of each class, the share is
    tr(G C (C'GC)^+ C'G) / tr(G). A share near 1 says that the group's gradient is the difference of two means.
    Two directions catch something of any few rows, so read it against R: R = 2 gives 1 always.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].
        passed: Whether each rollout passed, [R].

    Returns:
        A number from 0 to 1; undefined where a class is empty or every row is zero.

    Raises:
        ValueError: There is not one flag a row.

    Example:
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
    """Gram of the groups' summed rows.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].
        index: Group of each row, from 0 to J - 1, [R].

    Returns:
        Gram matrix of the J sums, [J, J].

    Raises:
        ValueError: There is not one group number a row.

    Example:
        >>> group_sums([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 4.0]], [0, 0, 1]).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    matrix = checked_gram(gram)
    groups = np.asarray(index, dtype=np.int64)
    if groups.shape != (len(matrix),) or np.any(groups < 0):
        raise ValueError(f"{len(matrix)} group numbers from 0 are needed, got shape {groups.shape}")
    members = np.eye(int(groups.max(initial=-1)) + 1)[groups]
    return np.asarray(members.T @ matrix @ members, dtype=np.float64)


def update_gram(score_gram: ArrayLike, advantages: ArrayLike) -> Array:
    """Inner products of whole updates: A K A', one row of A a formulation.

    Args:
        score_gram: Gram matrix K of the score vectors, [R, R].
        advantages: One row of advantages a formulation, [F, R].

    Returns:
        Gram matrix of the F updates, [F, F]; its :func:`cosines` are those between formulations.

    Raises:
        ValueError: The shapes do not go together.

    Example:
        >>> update_gram([[1.0, 0.0], [0.0, 1.0]], [[1.0, -1.0], [1.0, 1.0]]).tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """
    matrix, weights = checked_gram(score_gram), np.asarray(advantages, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[1] != len(matrix):
        raise ValueError(f"rows of {len(matrix)} advantages are needed, got shape {weights.shape}")
    return np.asarray(weights @ matrix @ weights.T, dtype=np.float64)


def between_groups(gram: ArrayLike, index: ArrayLike) -> Estimate:
    """Share of |X|_F^2 in the groups' mean rows: sum over j of n_j |mean row of j|^2, over tr(G).

    What is left lies within groups and cancels in each group's sum.

    Args:
        gram: Gram matrix of the gradient rows, [R, R].
        index: Group of each row, from 0 to J - 1, [R].

    Returns:
        A number from 0 to 1; undefined where every row is zero.

    Example:
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

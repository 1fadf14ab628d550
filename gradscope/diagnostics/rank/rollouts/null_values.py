"""Singular values under each null model of a gradient matrix, many matrices at once.

Shapes: n matrices of N rows, R = n N rollouts, D draws, J groups of a step, P parameters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.gram.null_models import gaussian_cosines, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import center_grams, singular_values_from_grams

Array = NDArray[np.float64]


def null_values(
    scores: Array,
    gradients: Array,
    advantages: Array | None,
    groups: NDArray[np.int64],
    *,
    num_columns: int,
    centered: bool,
    sums: Array | None = None,
) -> dict[str, Array]:
    """What the singular values of gradient matrices would be under each null model.

    Args:
        scores: Gram matrices of score vectors, [n, N, N].
        gradients: Gram matrices of the gradient rows that the nulls stand beside, [n, N, N] ([n, J, J] with ``sums``).
        advantages: [n, N]; None where each token has its own.
        groups: The group of each rollout, among which advantages are shuffled, [n, N].
        num_columns: P.
        centered: Whether the mean row is subtracted.
        sums: Adds rollouts up to the rows of the matrix, [J, N]; None: a row is a rollout.

    Returns:
        Null -> singular values, [D, n, N] or [D, n, J]; without ``shuffled`` and ``signs`` where there are no scalar
        advantages.
    """

    def values(grams: Array) -> Array:
        return singular_values_from_grams(center_grams(grams) if centered else grams)

    def weighted(factors: Array) -> Array:
        grams = factors[..., :, None] * scores * factors[..., None, :]
        return values(grams if sums is None else sums @ grams @ sums.T)

    draws = num_draws(scores.shape[-1])
    found = {"unweighted": weighted(np.ones((1, *scores.shape[:2])))}
    if advantages is not None:
        dealt = shuffled_within(advantages.ravel(), groups.ravel(), draws).reshape(draws, *advantages.shape)
        found |= {"shuffled": weighted(dealt), "signs": weighted(np.sign(advantages)[None])}
    norms = np.sqrt(np.clip(np.diagonal(gradients, axis1=-2, axis2=-1), 0.0, None))
    cosines = gaussian_cosines(norms.shape[-1], num_columns, draws)[:, None]
    return found | {"gaussian": values(norms[:, :, None] * cosines * norms[:, None, :])}

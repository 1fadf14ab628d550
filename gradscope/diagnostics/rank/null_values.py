"""What a gradient matrix would look like under each null model: of rollouts, of groups, and of tokens alike.

:func:`null_values` draws the singular values of many matrices at once, :func:`mean_null_ranks` makes one rank a null of
them. A row weighs its score vector by its rollout's advantage, so every null but ``gaussian`` exchanges the advantages
alone; of tokens, all rows of a rollout get that rollout's.

Shapes: n matrices of N rows, G rollouts of a matrix, D draws, J groups of a step, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.null_models import NULLS, gaussian_cosines, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import (
    ZERO_MATRIX,
    Array,
    center_grams,
    effective_ranks,
    singular_values_from_grams,
)

TOKEN_ADVANTAGES = "each token has its own advantage, so there is no scalar to shuffle or to take the sign of"


def null_values(
    scores: Array,
    norms: Array,
    advantages: Array | None,
    groups: NDArray[np.int64],
    *,
    num_columns: int,
    centered: bool,
    spread: Array | None = None,
    sums: Array | None = None,
) -> dict[str, Array]:
    """What the singular values of gradient matrices would be under each null model.

    Args:
        scores: Gram matrices of score vectors, [n, N, N].
        norms: Norms of the gradient rows that the nulls stand beside, [n, N] ([n, J] with ``sums``).
        advantages: [n, G]; None where each token has its own.
        groups: The group of each rollout, among which advantages are shuffled, [n, G].
        num_columns: P.
        centered: Whether the mean row is subtracted.
        spread: What each row gets of each rollout's advantage, [N, G]; None: a row is a rollout.
        sums: Adds rows up to the rows of the matrix, [J, N]; None: they are its rows.

    Returns:
        Null -> singular values, [D, n, N] or [D, n, J]; without ``shuffled`` and ``signs`` where there are no scalar
        advantages.
    """

    def values(grams: Array) -> Array:
        return singular_values_from_grams(center_grams(grams) if centered else grams)

    def weighted(factors: Array) -> Array:
        grams = factors[..., :, None] * scores * factors[..., None, :]
        return values(grams if sums is None else sums @ grams @ sums.T)

    def of_rows(dealt: Array) -> Array:
        return dealt if spread is None else np.asarray(dealt @ spread.T, dtype=np.float64)

    draws = num_draws(scores.shape[-1])
    drawn = {"unweighted": weighted(of_rows(np.ones((1, *groups.shape))))}
    if advantages is not None:
        dealt = shuffled_within(advantages.ravel(), groups.ravel(), draws).reshape(draws, *advantages.shape)
        drawn |= {"shuffled": weighted(of_rows(dealt)), "signs": weighted(of_rows(np.sign(advantages)[None]))}
    cosines = gaussian_cosines(norms.shape[-1], num_columns, draws)[:, None]
    return drawn | {"gaussian": values(norms[:, :, None] * cosines * norms[:, None, :])}


def mean_null_ranks(values: Mapping[str, Array], *, num_units: int = 1) -> dict[str, Estimate]:
    """The effective rank under each null, a mean over the draws that left a matrix to rank.

    Args:
        values: Null -> singular values, from :func:`null_values`; empty for a matrix that is zero.
        num_units: Groups that the matrix is made of.

    Returns:
        Every null of the catalogue; undefined with its reason where there is no rank.
    """
    return {name: _mean_rank(values, name, num_units) for name in NULLS}


def _mean_rank(values: Mapping[str, Array], name: str, num_units: int) -> Estimate:
    if name not in values:
        return Estimate.undefined_because(TOKEN_ADVANTAGES if values else ZERO_MATRIX)
    ranks = effective_ranks(values[name])
    finite = ranks[np.isfinite(ranks)]
    return (
        Estimate.exact(float(finite.mean()), num_units=num_units)
        if len(finite)
        else Estimate.undefined_because(ZERO_MATRIX)
    )

"""Null models of token rows: what their rank would be without the advantages, or of tokens that have nothing in common.

The same nulls as of rollouts, on the Gram matrix U of grad log pi(token): a shuffle deals the advantages of the
rollouts of a part anew, and every token of a rollout keeps that rollout's.

Shapes: N token rows, G rollouts of a part, D draws, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.rollouts.curve_point import TOKEN_ADVANTAGES
from gradscope.estimate import Estimate
from gradscope.metrics.gram.null_models import NULLS, gaussian_cosines, num_draws, shuffled_within
from gradscope.metrics.gram.spectrum import ZERO_MATRIX, center_grams, effective_ranks, singular_values_from_grams

Array = NDArray[np.float64]


def token_nulls(
    gram: Array,
    weights: Array,
    score_weights: Array,
    advantages: Array | None,
    owners: NDArray[np.intp],
    *,
    num_columns: int,
    centered: bool,
) -> Mapping[str, Estimate]:
    """The effective rank of one part's token rows under each null model.

    Args:
        gram: Inner products of grad log pi(token), [N, N].
        weights: What multiplies each row, [N].
        score_weights: The same without advantages, [N].
        advantages: One per rollout of the part, [G]; None where each token has its own.
        owners: The place of each token's rollout in the part, [N].
        num_columns: P.
        centered: Whether the mean row is subtracted.

    Returns:
        Mean over draws; undefined where every row is zero, and for ``shuffled`` and ``signs`` without scalars.
    """
    norms = np.abs(weights) * np.sqrt(np.clip(np.diag(gram), 0.0, None))
    if not norms.any():
        return {name: Estimate.undefined_because(ZERO_MATRIX) for name in NULLS}
    draws = num_draws(len(weights))
    factors = {"unweighted": np.ones((1, len(weights)))}
    if advantages is not None:
        dealt = shuffled_within(advantages, np.zeros(len(advantages), dtype=np.int64), draws)
        factors |= {"shuffled": dealt[:, owners], "signs": np.sign(advantages)[None, owners]}
    grams = {name: _weighed(gram, drawn * score_weights) for name, drawn in factors.items()}
    cosines = gaussian_cosines(len(norms), num_columns, draws)
    grams["gaussian"] = norms[:, None] * cosines * norms
    found = {name: _rank(drawn, centered=centered) for name, drawn in grams.items()}
    none = Estimate.undefined_because(TOKEN_ADVANTAGES)
    return {name: found.get(name, none) for name in NULLS}


def _weighed(gram: Array, weights: Array) -> Array:
    """Gram matrices of the rows under several choices of weights, [D, N, N]."""
    return np.asarray(weights[:, :, None] * gram * weights[:, None, :], dtype=np.float64)


def _rank(grams: Array, *, centered: bool) -> Estimate:
    ranks = effective_ranks(singular_values_from_grams(center_grams(grams) if centered else grams))
    known = ranks[np.isfinite(ranks)]
    return Estimate.exact(float(known.mean())) if len(known) else Estimate.undefined_because(ZERO_MATRIX)

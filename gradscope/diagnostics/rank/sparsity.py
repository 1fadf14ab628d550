"""Sparsity below the rollout: of a step's tokens, and of the entries of each weight's gradient.

Shapes: N token rows of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.results.ranks.tokens import GradientSparsity

if TYPE_CHECKING:
    from gradscope.gradients.step.directions import WeightSpectrum
    from gradscope.gradients.tokens.measure import TokenGram


def token_sparsity(step: int, tokens: Sequence[TokenGram]) -> list[GradientSparsity]:
    """The norms of all token rows of a step under the logged advantages.

    Returns:
        One; none where no advantage was logged or no token counts.
    """
    norms, num_tokens = [], sum(gram.table.num_tokens for gram in tokens)
    for gram in tokens:
        if gram.table.logged_weights is None:
            return []
        norms.append(np.abs(gram.table.logged_weights) * np.sqrt(np.clip(np.diag(gram.gram), 0.0, None)))
    if not norms:
        return []
    sparsity = row_sparsity(np.concatenate(norms))
    return [
        GradientSparsity(
            step=step,
            parts="tokens",
            tensor=None,
            num_parts=num_tokens,
            frac_seen=sum(map(len, norms)) / num_tokens,
            zero=sparsity["zero_rows"],
            small=sparsity["small_rows"],
            hoyer=sparsity["hoyer"],
            gini=sparsity["gini"],
        )
    ]


def weight_sparsity(step: int, spectra: Sequence[WeightSpectrum]) -> list[GradientSparsity]:
    """The sizes of the entries of each weight's gradient, as the optimizer saw it; one per weight."""
    return [
        GradientSparsity(
            step=step,
            parts="entries",
            tensor=spectrum.tensor,
            num_parts=spectrum.shape[0] * spectrum.shape[1],
            frac_seen=1.0,
            zero=spectrum.entries["zero_rows"],
            small=spectrum.entries["small_rows"],
            hoyer=spectrum.entries["hoyer"],
            gini=spectrum.entries["gini"],
        )
        for spectrum in spectra
    ]

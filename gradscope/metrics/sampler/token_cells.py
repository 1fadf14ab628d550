"""Tokens by the sign of their advantage, how likely they were and how undecided the policy was.

Legend: N tokens that count in a step's loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Sign = Literal["positive", "negative"]
Entropy = Literal["top_fifth", "rest"]
SIGNS: tuple[Sign, ...] = ("positive", "negative")
ENTROPIES: tuple[Entropy, ...] = ("top_fifth", "rest")
PROBABILITIES = (0.0, 0.25, 0.75, 1.0)
"""Bounds of the three buckets of probability: unlikely, in between and likely tokens. They are the same at every step,
which quantiles would not be: late in training most tokens have probability near 1."""
TOP = 0.2
"""Share of the tokens that count as of high entropy, as in arXiv 2506.01939."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCell:
    """One kind of token; None stands for all of that kind."""

    sign: Sign | None = None
    """Of the advantage."""
    probability: int | None = None
    """Which bucket of :data:`PROBABILITIES`, from 0."""
    entropy: Entropy | None = None
    """Whether among the top fifth of the step's tokens."""

    def holds(self, cell: TokenCell) -> bool:
        """Whether all tokens of another cell are of this kind.

        Returns:
            Whether the two agree in everything that this one names.

        Example:
            >>> TokenCell(sign="positive").holds(TokenCell(sign="positive", probability=0, entropy="rest"))
            True
        """
        pairs = ((self.sign, cell.sign), (self.probability, cell.probability), (self.entropy, cell.entropy))
        return all(mine is None or mine == other for mine, other in pairs)


def token_cells(advantages: ArrayLike, logprobs: ArrayLike, entropies: ArrayLike) -> dict[TokenCell, NDArray[np.bool_]]:
    """Which tokens are in each of the twelve cells; those of advantage zero, which have no gradient, are in none.

    Args:
        advantages: Of each token, [N].
        logprobs: Log pi, [N].
        entropies: In nats; the top fifth is from their quantile up, so that equal ones stay together, [N].

    Returns:
        Cell -> mask [N], those without a token left out.

    Example:
        >>> cells = token_cells([1.0, -1.0], [0.0, -3.0], [0.0, 1.0])
        >>> [(cell.sign, cell.probability, cell.entropy) for cell in cells]
        [('positive', 2, 'rest'), ('negative', 0, 'top_fifth')]
    """
    values, probabilities = np.asarray(advantages, dtype=np.float64), np.exp(np.asarray(logprobs, dtype=np.float64))
    undecided = np.asarray(entropies, dtype=np.float64)
    bucket = np.clip(np.searchsorted(PROBABILITIES[1:-1], probabilities, side="right"), 0, len(PROBABILITIES) - 2)
    is_top = undecided >= np.quantile(undecided, 1.0 - TOP)
    found = {}
    for sign in SIGNS:
        of_sign = values > 0 if sign == "positive" else values < 0
        for place in range(len(PROBABILITIES) - 1):
            for entropy in ENTROPIES:
                mask = of_sign & (bucket == place) & (is_top if entropy == "top_fifth" else ~is_top)
                if mask.any():
                    found[TokenCell(sign=sign, probability=place, entropy=entropy)] = mask
    return found

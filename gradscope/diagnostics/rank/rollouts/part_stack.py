"""Sub-groups of one size under one advantage, stacked into arrays. Shapes: n parts, G rollouts a part, D null draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.rank.null_values import null_values
from gradscope.diagnostics.rank.rollouts.sub_groups import SubGroup
from gradscope.metrics.gram.geometry import channels
from gradscope.metrics.gram.spectrum import Array, center_grams, singular_values_from_grams


@dataclass(frozen=True, kw_only=True)
class PartStack:
    """Parts of one size under one advantage, as arrays."""

    parts: tuple[SubGroup, ...]
    """The parts, [n]."""
    scores: Array
    """Gram matrices of their score vectors, [n, G, G]."""
    baseline_weights: Array
    """What each rollout weighs in the baseline of its formulation, [n, G]."""
    gradients: Array
    """Gram matrices of their gradient rows, [n, G, G]."""
    weights: Array
    """Advantages, [n, G]; 1 and 0 where each token has its own."""
    rewards: Array
    """Scalar rewards, NaN where missing, [n, G]."""
    is_scalar: bool
    """Whether each rollout has one advantage."""
    num_columns: int
    """P."""
    centered: bool
    """Whether the mean row is subtracted."""

    @cached_property
    def values(self) -> Array:
        """Singular values, descending, [n, G]."""
        return singular_values_from_grams(center_grams(self.gradients) if self.centered else self.gradients)

    @property
    def summed_energy(self) -> Array:
        """|sum of rows|^2 over the sum of their squared norms, [n]; NaN for a part without a gradient."""
        energy = np.trace(self.gradients, axis1=1, axis2=2)
        total = np.clip(self.gradients.sum(axis=(1, 2)), 0.0, None)
        return np.asarray(np.divide(total, energy, out=np.full(len(energy), np.nan), where=energy > 0))

    @property
    def channels(self) -> Array:
        """What the sum makes of what the rows share and of the rest, as of :func:`channels`, [n, 5]."""
        return channels(self.gradients)

    @property
    def is_live(self) -> NDArray[np.bool_]:
        """Which parts have an advantage that is not zero, [n]."""
        return np.asarray(np.any(self.weights != 0, axis=1))

    def null_values(self, chosen: NDArray[np.bool_]) -> dict[str, Array]:
        """Null -> singular values of the chosen parts, [D, n, G]."""
        num_parts, size = self.weights[chosen].shape
        return null_values(
            self.scores[chosen],
            np.sqrt(np.clip(np.diagonal(self.gradients[chosen], axis1=1, axis2=2), 0.0, None)),
            self.weights[chosen] if self.is_scalar else None,
            np.repeat(np.arange(num_parts), size).reshape(num_parts, size),
            num_columns=self.num_columns,
            centered=self.centered,
        )

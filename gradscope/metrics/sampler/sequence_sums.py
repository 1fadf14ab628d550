"""Log-ratios of tokens summed by sequence: all that later estimates need, so that no token is kept.

Legend: N tokens, S sequences. A token's ratio is w = p_trainer / p_sampler, its log-ratio d = log w. A log of many
tokens is summed a step at a time, and the sums are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

WIDE = 2.0
"""A ratio of more than this, or of less than one over it, is far beyond what kernels and precisions make."""
CLIP = 0.2
"""The usual bounds of PPO's clip, 1 - 0.2 and 1 + 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSums:
    """Sums over the tokens of each sequence."""

    num_tokens: Array
    """Tokens, at least one, [S]."""
    log_weight: Array
    """log of the sum of w, [S]."""
    log_square: Array
    """log of the sum of w^2, [S]."""
    log_ratio: Array
    """Sum of d, the log-ratio of the sequence, [S]."""
    distance: Array
    """Sum of |d|, [S]."""
    k3: Array
    """Sum of w - 1 - d, infinite beyond floating point, [S]."""
    excess: Array
    """Sum of w^2 - 1, infinite beyond floating point, [S]."""
    num_wide: Array
    """Tokens with a ratio outside [1/2, 2], [S]."""
    num_beyond: Array
    """Tokens with a ratio outside [0.8, 1.2], [S]."""
    num_clipped: Array
    """Tokens that PPO's clip takes the gradient of, [S]; NaN where the advantage of one is not known."""


def sequence_sums(log_ratios: ArrayLike, lengths: ArrayLike, advantages: ArrayLike | None = None) -> SequenceSums:
    """Sums over the tokens of each sequence.

    Args:
        log_ratios: log p_trainer - log p_sampler of every token, finite, the sequences one after the other, [N].
        lengths: Tokens of each sequence, at least one, [S].
        advantages: Advantage of every token, NaN where it is not known, [N]; None: none is known.

    Returns:
        The sums.

    Raises:
        ValueError: The lengths do not add up to N, one is 0, or a log-ratio is not finite.

    Example:
        >>> sums = sequence_sums([0.0, 1.0, -1.0], [2, 1], [1.0, 1.0, 1.0])
        >>> sums.log_ratio.tolist(), sums.num_wide.tolist(), sums.num_clipped.tolist()
        ([1.0, -1.0], [1.0, 1.0], [1.0, 0.0])
    """
    ratios, sizes = np.asarray(log_ratios, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
    if ratios.shape != (sizes.sum(),) or np.any(sizes < 1) or not np.all(np.isfinite(ratios)):
        raise ValueError(f"{sizes.sum()} tokens of non-empty sequences need as many finite log-ratios")
    signs = np.full(len(ratios), np.nan) if advantages is None else np.sign(np.asarray(advantages, dtype=np.float64))
    starts = np.cumsum(sizes) - sizes

    def total(values: NDArray[np.generic]) -> Array:
        return np.add.reduceat(values.astype(np.float64), starts) if len(sizes) else np.zeros(0)

    largest = np.maximum.reduceat(ratios, starts) if len(sizes) else np.zeros(0)
    below = np.exp(ratios - np.repeat(largest, sizes))
    with np.errstate(over="ignore"):
        changes = np.expm1(ratios)
        k3, excess = total(changes - ratios), total(np.expm1(2 * ratios))
    high, low = changes > CLIP, changes < -CLIP
    clipped = np.where(np.isnan(signs), np.nan, (high & (signs > 0)) | (low & (signs < 0)))
    return SequenceSums(
        num_tokens=sizes.astype(np.float64),
        log_weight=largest + np.log(total(below)),
        log_square=2 * largest + np.log(total(below**2)),
        log_ratio=total(ratios),
        distance=total(np.abs(ratios)),
        k3=k3,
        excess=excess,
        num_wide=total(np.abs(ratios) > np.log(WIDE)),
        num_beyond=total(high | low),
        num_clipped=total(clipped),
    )


def joined_sums(parts: Sequence[SequenceSums]) -> SequenceSums:
    """The sums of several steps as those of one log.

    Returns:
        All sequences, in order; none where there are no parts.

    Example:
        >>> joined_sums([sequence_sums([0.5], [1]), sequence_sums([0.25], [1])]).log_ratio.tolist()
        [0.5, 0.25]
    """
    nothing = sequence_sums([], [])
    return SequenceSums(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in (nothing, *parts)])
            for field in fields(SequenceSums)
        }
    )

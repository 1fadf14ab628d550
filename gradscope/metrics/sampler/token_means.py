"""Means over tokens whose intervals resample prompts: tokens of one completion are far from independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling


def token_mean(
    sums: ArrayLike,
    num_tokens: ArrayLike,
    prompts: ArrayLike,
    *,
    resampling: Resampling = RESAMPLING,
) -> Estimate:
    """A mean over all tokens of some sequences, of numbers that are not negative.

    Args:
        sums: Sum over the tokens of each sequence, [S].
        num_tokens: Tokens of each sequence, at least one, [S].
        prompts: The prompt of each sequence, numbers or strings, [S].
        resampling: How often, and from which seed.

    Returns:
        (sum of sums) / (sum of tokens); undefined without a sequence.

    Example:
        >>> token_mean([1.0, 5.0], [1, 2], ["a", "b"]).value
        2.0
    """
    table = np.column_stack([np.asarray(sums, dtype=np.float64), np.asarray(num_tokens, dtype=np.float64)])
    if not len(table):
        return Estimate.undefined_because("there is nothing to average")
    (mean,) = bootstrap_statistics(_ratio, cluster_sums(table, prompts), within=(0.0, np.inf), resampling=resampling)
    return mean


def _ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(totals[..., :1] / totals[..., 1:], dtype=np.float64)

"""Which baseline makes the gradient least noisy: all of them from the diagonal of one Gram matrix.

For one prompt the estimate s (r - b) of the gradient has the same mean for every b that does not depend on the rollout
itself, so baselines differ in E[|s|^2 (r - b)^2] alone, and the best constant is b* = E[|s|^2 r] / E[|s|^2]
(Greensmith, Bartlett & Baxter 2004, JMLR 5). It is the mean reward exactly where the reward is uncorrelated with |s|^2.
All this is exact for token weights that do not depend on the completion, where the mean of s is zero; a loss that
divides by a completion's length bends it a little.

Legend: n groups of G rollouts, r rewards, q = |s|^2 the squared norms of the score vectors, b baselines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.outcomes.reward_shares import correlation_of_sums
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics

REFERENCE = "leave_one_out"
"""The baseline of reference: unbiased, and equal to centering by the group's mean up to a factor."""


def optimal_baselines(rewards: ArrayLike, squared_norms: ArrayLike) -> Array:
    """The constant that minimizes the second moment of a group's gradient, sum(q r) / sum(q), [..., 1].

    From r and q of groups of one size, [..., G] each; the mean reward where every score vector is zero.

    >>> optimal_baselines([[1.0, 0.0], [1.0, 0.0]], [[3.0, 1.0], [0.0, 0.0]]).tolist()
    [[0.75], [0.5]]
    """
    values, weights = _checked(rewards, squared_norms)
    total, weighted = weights.sum(axis=-1, keepdims=True), (weights * values).sum(axis=-1, keepdims=True)
    best = np.divide(weighted, total, out=values.mean(axis=-1, keepdims=True), where=total > 0)
    return np.asarray(best, dtype=np.float64)


def baselines(rewards: ArrayLike, squared_norms: ArrayLike) -> dict[str, Array]:
    """Baselines of each rollout that look at one group only, [n, G] each, from r and q, [n, G] each, G >= 2.

    ``group_mean`` and ``optimal`` see the rollout that they are for: the first shrinks the gradient by (G - 1)/G, the
    second is a bound that no constant of the group can beat on these rollouts. The others do not.

    >>> by_name = baselines([[1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]])
    >>> by_name["leave_one_out"].tolist(), by_name["optimal_leave_one_out"].tolist()
    ([[0.0, 0.5, 0.5]], [[0.0, 0.5, 0.5]])
    """
    values, weights = _checked(rewards, squared_norms)
    size = values.shape[-1]
    total, weighted = weights.sum(axis=-1, keepdims=True), (weights * values).sum(axis=-1, keepdims=True)
    leave_one_out = (values.sum(axis=-1, keepdims=True) - values) / (size - 1)
    mean = np.broadcast_to(values.mean(axis=-1, keepdims=True), values.shape)
    left = total - weights
    return {
        "zero": np.zeros(values.shape),
        "group_mean": mean,
        "leave_one_out": leave_one_out,
        "optimal": np.broadcast_to(optimal_baselines(values, weights), values.shape),
        "optimal_leave_one_out": np.divide(
            weighted - weights * values, left, out=leave_one_out.copy(), where=left > 1e-12 * total
        ),
    }


def second_moment(rewards: ArrayLike, squared_norms: ArrayLike, baseline: ArrayLike) -> Array:
    """The mean of |s|^2 (r - b)^2 over the rollouts of each group, [n], from r, q and b, [n, G] each.

    >>> second_moment([[1.0, 0.0]], [[2.0, 4.0]], [[0.5, 0.5]]).tolist()
    [0.75]
    """
    values, weights = _checked(rewards, squared_norms)
    return np.asarray(np.mean(weights * (values - np.asarray(baseline)) ** 2, axis=-1), dtype=np.float64)


def reward_norm_correlation(rewards: ArrayLike, squared_norms: ArrayLike) -> Estimate:
    """Correlation of r and q, [n, G] each, within groups, pooled: what makes the mean a poor baseline.

    Its interval resamples groups. Undefined where rewards or norms do not vary within any group.

    >>> reward_norm_correlation([[1.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [5.0, 7.0]]).value.__round__(3)
    -0.949
    """
    values, weights = _checked(rewards, squared_norms)
    first = values - values.mean(axis=-1, keepdims=True)
    second = weights - weights.mean(axis=-1, keepdims=True)
    moments = np.stack([np.sum(one * two, axis=-1) for one, two in ((first, second), (first, first), (second, second))])
    if moments[1:].sum(axis=1).min() == 0.0:
        return Estimate.undefined_because("rewards or norms do not vary within any group", num_units=len(values))
    (correlation,) = bootstrap_statistics(correlation_of_sums, moments.T)
    return correlation.within(-1.0, 1.0)


def _checked(rewards: ArrayLike, squared_norms: ArrayLike) -> tuple[Array, Array]:
    values, weights = np.asarray(rewards, dtype=np.float64), np.asarray(squared_norms, dtype=np.float64)
    if values.shape != weights.shape or not (np.all(np.isfinite(values)) and np.all(weights >= 0)):
        raise ValueError(f"rewards and squared norms go together, got shapes {values.shape} and {weights.shape}")
    return values, weights

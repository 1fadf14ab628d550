"""Whether groups differ more than independent coin flips would, and by how much.

Legend: J groups, n rollouts of a group, c of them passing, x = c/n, N and K their sums over a stratum, G group size.

The test asks for the pairs of rollouts of one group that disagree: prompts of unequal difficulty leave fewer of them.
If every rollout of a step were a flip of the same coin, the outcomes of the step could be dealt to its groups in any
order; so the outcomes are dealt anew, within steps. It is exact given the step totals, whatever p was, and a prompt
that returns at several steps does it no harm: under the hypothesis prompts do not matter. Mean and variance over all
deals are known in closed form (factorial moments of the multivariate hypergeometric distribution).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

NUM_DEALS = 1999
MANY_GROUPS = 1000
"""With more groups the normal distribution is as good as dealing, and faster."""
DEALT = f"{NUM_DEALS} deals of the outcomes within steps"
NORMAL = "normal approximation, exact moments within steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispersionTest:
    """The i.i.d. hypothesis on trial."""

    z: Estimate
    """Standard deviations by which fewer pairs disagree than in the mean of all deals; positive: over-dispersed."""
    p_value: Estimate
    """Chance of so few disagreeing pairs if all rollouts of a step had one pass rate."""
    test: str
    """How the p-value was found."""


def dispersion_test(
    num_samples: ArrayLike, num_passing: ArrayLike, stratum: ArrayLike, *, seed: int = 0
) -> DispersionTest:
    """Test that all rollouts of a stratum have one pass rate, against groups that differ.

    Args:
        num_samples: n of each group, [J].
        num_passing: c of each group, [J].
        stratum: The step of each group, [J].
        seed: Seed of the deals.

    Returns:
        The test; undefined where no deal could change anything.

    Example:
        >>> test = dispersion_test([4] * 8, [0, 4] * 4, [1] * 8)
        >>> round(test.z.value, 2), test.p_value.value
        (7.28, 0.0005)
    """
    n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passing, dtype=np.int64)
    strata = [(n[rows], int(c[rows].sum())) for rows in _rows_by(np.asarray(stratum))]
    moments = [_moments(sizes.astype(np.float64), passing) for sizes, passing in strata]
    mean, variance = (sum(moment[part] for moment in moments) for part in range(2))
    if variance <= 1e-9:
        reason = "no other deal of the outcomes of a step would change how many pairs of a group disagree"
        undefined = Estimate.undefined_because(reason, num_units=len(n))
        return DispersionTest(z=undefined, p_value=undefined, test=NORMAL)
    observed = int(np.sum(c * (n - c)))
    z = (mean - observed) / variance**0.5
    if len(n) > MANY_GROUPS:
        return _tested(z, float(ndtr(-z)), NORMAL, len(n))
    dealt = _deal(strata, seed)
    return _tested(z, (1 + int(np.sum(dealt <= observed))) / (1 + NUM_DEALS), DEALT, len(n))


def rate_variance_unbiased(num_samples: ArrayLike, num_passing: ArrayLike) -> float:
    """Var(p_x) without bias: the variance of x minus the mean of x (1-x) / (n-1).

    Args:
        num_samples: n of each group, at least 2, [J], J at least 2.
        num_passing: c of each group, [J].

    Returns:
        The variance; slightly negative where the groups differ less than coin flips would.

    Example:
        >>> round(rate_variance_unbiased([2, 2], [0, 2]), 4)
        0.5
    """
    n = np.asarray(num_samples, dtype=np.float64)
    x = np.asarray(num_passing, dtype=np.float64) / n
    return float(np.var(x, ddof=1) - np.mean(x * (1 - x) / (n - 1)))


def estimate_rate_variance(
    num_samples: ArrayLike, num_passing: ArrayLike, prompts: ArrayLike, *, num_resamples: int, seed: int
) -> Estimate:
    """:func:`rate_variance_unbiased` with an interval by resampling prompts.

    Args:
        num_samples: n of each group, at least 2, [J].
        num_passing: c of each group, [J].
        prompts: The prompt of each group, [J].
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The estimate; undefined for a single group.

    Example:
        >>> estimate_rate_variance([2, 2], [0, 2], ["a", "b"], num_resamples=100, seed=0).value
        0.5
    """
    n = np.asarray(num_samples, dtype=np.float64)
    if len(n) < 2:
        return Estimate.undefined_because("one group has no variance between groups", num_units=len(n))
    x = np.asarray(num_passing, dtype=np.float64) / n
    units = cluster_sums(np.column_stack([x, x**2, x * (1 - x) / (n - 1), np.ones(len(n))]), prompts)

    def variance(sums: Array) -> Array:
        count = sums[..., 3:]
        spread = (sums[..., 1:2] - sums[..., :1] ** 2 / count) / np.maximum(count - 1, 1.0)
        return np.asarray(spread - sums[..., 2:3] / count, dtype=np.float64)

    (estimate,) = bootstrap_statistics(variance, units, num_resamples=num_resamples, seed=seed)
    return estimate


def iid_prediction_unbiased(rates: ArrayLike, group_size: int) -> float:
    """p^G + (1-p)^G without bias: the mean over all choices of G different groups of the product of their rates.

    The plug-in at the mean rate is biased upward, by Jensen's inequality again. With it the gap at G = 2 is exactly
    twice, and at G = 3 three times :func:`rate_variance_unbiased`.

    Args:
        rates: x of each group, [J].
        group_size: G, at most J.

    Returns:
        The prediction.

    Raises:
        ValueError: There are fewer groups than G.

    Example:
        >>> iid_prediction_unbiased([0.0, 1.0], 2)
        0.0
    """
    x = np.asarray(rates, dtype=np.float64)
    if len(x) < group_size:
        raise ValueError(f"{group_size} different groups cannot be chosen from {len(x)}")
    return _mean_product(x, group_size) + _mean_product(1 - x, group_size)


def _mean_product(values: Array, size: int) -> float:
    """Mean over all subsets of a size of the product of their values, one value at a time."""
    means = np.zeros(size + 1)
    means[0] = 1.0
    orders = np.arange(1, size + 1)
    for seen, value in enumerate(values, start=1):
        taken = np.minimum(orders / seen, 1.0)
        means[1:] = (1 - taken) * means[1:] + taken * value * means[:-1]
    return float(means[size])


def _rows_by(stratum: NDArray[np.generic]) -> list[Counts]:
    """Rows of each stratum of two or more groups."""
    _, index = np.unique(stratum, return_inverse=True)
    order = np.argsort(index, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(index))[:-1])
    return [rows for rows in parts if len(rows) > 1]


def _moments(sizes: Array, passing: int) -> tuple[float, float]:
    """Mean and variance over all deals of the number of disagreeing pairs."""
    total = float(sizes.sum())

    def joint(passed: int, failed: int, falling_sizes: float) -> float:
        """Factorial moment: ``passed`` of the passing and ``failed`` of the failing land where asked."""
        of_both = _falling(float(passing), passed) * _falling(total - passing, failed)
        return falling_sizes * of_both / _falling(total, passed + failed)

    pairs, triples, fours = (_falling_sizes(sizes, order) for order in (2, 3, 4))
    mean = joint(1, 1, float(pairs.sum()))
    same = (
        mean + joint(2, 1, float(triples.sum())) + joint(1, 2, float(triples.sum())) + joint(2, 2, float(fours.sum()))
    )
    apart = joint(2, 2, float(pairs.sum() ** 2 - np.sum(pairs**2)))
    return mean, same + apart - mean**2


def _falling(number: float, order: int) -> float:
    return float(np.prod(number - np.arange(order)))


def _falling_sizes(sizes: Array, order: int) -> Array:
    return np.asarray(np.prod(sizes[:, None] - np.arange(order), axis=1), dtype=np.float64)


def _deal(strata: list[tuple[Counts, int]], seed: int) -> Counts:
    rng = np.random.default_rng(seed)
    disagreeing = np.zeros(NUM_DEALS, dtype=np.int64)
    for sizes, passing in strata:
        dealt = rng.multivariate_hypergeometric(sizes, passing, size=NUM_DEALS, method="marginals")
        disagreeing += np.sum(dealt * (sizes - dealt), axis=1)
    return disagreeing


def _tested(z: float, p_value: float, test: str, num_groups: int) -> DispersionTest:
    return DispersionTest(
        z=Estimate.exact(z, num_units=num_groups), p_value=Estimate.exact(p_value, num_units=num_groups), test=test
    )

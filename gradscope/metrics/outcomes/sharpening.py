"""How much sharper a second policy is than a first: whether the first, given more samples, would do as well.

Legend: n samples of a prompt, c of them correct, p the pass rate of the first policy on a prompt, q that of the second,
k the budget, P prompts, B resamples, m and M factors.

A policy that keeps the best of M samples of the first has q = 1 - (1-p)^M, and the first's pass@(M k) is its pass@k: it
gains at every k that anybody samples, and solves no prompt that the first cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k, pass_hat_k, why_k_too_large
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means, cluster_sums, correlation_of_means
from gradscope.metrics.uncertainty.difference import difference_of
from gradscope.metrics.uncertainty.level import QUANTILES
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.metrics.uncertainty.studentized import FEW_UNITS, merged_units, resampled_sums

Array = NDArray[np.float64]
Counts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""n and c of each prompt, [P] each."""

_MOST_BUDGETS = 64
"""Budgets at which the first policy's curve is computed; it is straight between them."""
_DOUBLINGS = 20
"""A factor beyond 2^20 is not told from it."""
_EQUAL = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionFactor:
    """The least m with which pass@(m k) of the first policy reaches pass@k of the second."""

    factor: Estimate
    """m, its interval from resampled prompts; undefined where the first's samples do not reach that far."""
    at_least: float | None
    """Where m is undefined for that reason: what it is at least, with 97.5 % confidence."""


def compression_factors(
    first: Counts, second: Counts, ks: Sequence[int], *, resampling: Resampling = RESAMPLING
) -> tuple[CompressionFactor, ...]:
    """How many times as many samples the first policy needs, paired by prompt.

    The first policy's curve is taken as straight between budgets, and from 0 at k = 0 to pass@1; so m is real, and
    below 1 where the second is the worse one. Both ends of the interval are quantiles over resamples of prompts.

    Args:
        first: Counts of the first policy.
        second: Counts of the second, of the same prompts.
        ks: Budgets of the second.
        resampling: How often, and from which seed.

    Returns:
        One a budget.

    Example:
        >>> import numpy as np
        >>> n, c = np.full(20, 8), np.array([1, 3] * 10)
        >>> once, twice = compression_factors((n, c), (n, np.minimum(2 * c, 8)), [1, 2])
        >>> round(once.factor.value, 2), round(twice.factor.value, 2)
        (2.27, 2.16)
    """
    most, num_prompts = int(first[0].min()), len(first[0])
    budgets = np.unique(np.round(np.geomspace(1, most, _MOST_BUDGETS))).astype(np.int64)
    reasons = [why_k_too_large(second[0], k) for k in ks]
    known = [k for k, reason in zip(ks, reasons, strict=True) if reason is None]
    curves = [pass_at_k(*first, int(k)) for k in budgets] + [pass_at_k(*second, k) for k in known]
    units = cluster_sums(np.column_stack([*curves, np.ones(num_prompts)]), merged_units(num_prompts))
    sums = np.concatenate([units.sum(axis=0)[None], *resampled_sums(units, resampling)])
    sums = sums[:, :-1] / sums[:, -1:]
    found = iter(
        _factor(k, _reached(sums[:, : len(budgets)], target, budgets) / k, float(target[0]), most, num_prompts)
        for k, target in zip(known, sums[:, len(budgets) :].T, strict=True)
    )
    return tuple(
        next(found)
        if reason is None
        else CompressionFactor(factor=Estimate.undefined_because(reason, num_units=num_prompts), at_least=None)
        for reason in reasons
    )


def least_sharpening(first: Counts, second: Counts, *, resampling: Resampling = RESAMPLING) -> float | None:
    """The largest M such that best of M of the first policy is refuted by what the second newly solves.

    Best of any m up to M has q <= M p at every prompt, so (1-p)^(n-1) q^j (q - M p) <= 0 for j = 0 and j = 1, and so
    its mean over any prompts. The mean is estimated without bias from the prompts that the first solves never or once:
    n - 1 of its samples choose the prompts that they leave unsolved, and the one that is left, in turn each, says how
    often the first solves them after all. That is Good's and Turing's estimate of what was not yet seen, with the
    second policy's rate of solving it beside it. No distribution of pass rates is assumed, and none can be made up that
    explains the difference.

    Args:
        first: Counts of the first policy.
        second: Counts of the second, of the same prompts.
        resampling: How often, and from which seed.

    Returns:
        M with 95 % confidence, half of the error for each j; None where not even q = p is refuted.

    Example:
        >>> import numpy as np
        >>> n, hard = np.full(400, 64), np.arange(400) < 200
        >>> round(least_sharpening((n, np.where(hard, 0, 32)), (n, np.where(hard, 20, 32))))
        1012
        >>> least_sharpening((n, np.where(hard, 0, 32)), (n, np.where(hard, 0, 32))) is None
        True
    """
    (n, c), (num_second, _) = first, second
    unsolved, held_out = (c == 0) + (c == 1) / n, (c == 1) * (n.min() / n)
    refuted = []
    for power in range(min(2, int(num_second.min()))):
        weight = np.ones(len(n)) if power == 0 else pass_hat_k(*second, power)
        gained, missed = unsolved * pass_hat_k(*second, power + 1), held_out * weight
        columns = np.column_stack([missed, gained])
        shares = bootstrap_means(columns, resampling=resampling)
        refuted.append(_largest_refuted(shares[0], shares[1], correlation_of_means(columns), 1.0 / float(n.min())))
    return max((factor for factor in refuted if factor is not None), default=None)


def _largest_refuted(missed: Estimate, gained: Estimate, correlation: float, scale: float) -> float | None:
    """The largest M with gained - M scale missed above zero, to a thousandth; None where there is none from 1 on."""

    def refuted(doublings: float) -> bool:
        times = 2.0**doublings * scale
        first = missed.map(lambda share: share * times)
        return difference_of(first, gained, correlation=correlation).ends[0] > 0

    if not refuted(0.0):
        return None
    low, high = 0.0, float(_DOUBLINGS)
    while high - low > 0.001:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return float(2.0**low)


def _reached(curve: Array, target: Array, budgets: NDArray[np.int64]) -> Array:
    """The budget at which each curve, [B + 1, budgets], first reaches its target, [B + 1]; else infinite."""
    places = np.concatenate([[0.0], budgets.astype(np.float64), [np.inf]])
    rising = np.column_stack([np.zeros(len(curve)), curve, np.ones(len(curve))])
    index = np.sum(curve < target[:, None] - _EQUAL, axis=1)
    rows = np.arange(len(curve))
    below, above = rising[rows, index], rising[rows, index + 1]
    part = (target - below) / np.where(above > below, above - below, 1.0)
    start, end = places[index], places[index + 1]
    return np.where(np.isinf(end), np.inf, start + part * np.where(np.isinf(end), 0.0, end - start))


def _factor(k: int, factors: Array, target: float, most: int, num_prompts: int) -> CompressionFactor:
    """From the factor of the log and those of its resamples, [B + 1]."""
    if target == 0.0:
        reason = f"the second solves no prompt at k = {k}, so no sample of the first is needed"
        return CompressionFactor(factor=Estimate.undefined_because(reason, num_units=num_prompts), at_least=None)
    value, ends = float(factors[0]), np.quantile(factors[1:], QUANTILES, method="nearest")
    if np.isinf(value) or (num_prompts >= FEW_UNITS and np.isinf(ends[1])):
        reason = f"the {most} samples of the first do not reach the second's pass@{k} for certain: m is open upwards"
        least = min(float(ends[0]), most / k) if num_prompts >= FEW_UNITS else None
        return CompressionFactor(factor=Estimate.undefined_because(reason, num_units=num_prompts), at_least=least)
    if num_prompts < FEW_UNITS or ends[0] == ends[1]:
        return CompressionFactor(factor=Estimate.exact(value, num_units=num_prompts), at_least=None)
    low, high = min(float(ends[0]), value), max(float(ends[1]), value)
    return CompressionFactor(factor=Estimate(value=value, low=low, high=high, num_units=num_prompts), at_least=None)

"""pass@k and pass^k without bias, and whether a second policy is wider than a first or only sharper.

Legend: n samples of a prompt, c of them correct, k the budget, P prompts, p the pass rate of the first policy on a
prompt, q that of the second, m and M factors.

Where k exceeds n there is no unbiased estimate. The reference code of HumanEval then returns 1.0 (its test n - c < k
is also true there); here the function refuses and the estimate carries the reason.

A policy that keeps the best of M samples of the first has q = 1 - (1-p)^M, and the first's pass@(M k) is its pass@k: it
gains at every k that anybody samples, and solves no prompt that the first cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import frac_draws_all
from gradscope.metrics.uncertainty.bootstrap import FEW_UNITS, bootstrap_means, correlation_of_means
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling, difference_of, student_quantile

Array = NDArray[np.float64]


def pass_at_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> Array:
    """Chance that at least one of k samples is correct: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, equation 1).

    One unbiased estimate a prompt, from n and c, [...] each; k is at most the smallest n.

    >>> pass_at_k([4, 4, 4], [0, 1, 4], 2).tolist()
    [0.0, 0.5, 1.0]
    """
    return 1.0 - frac_draws_all(num_samples, np.asarray(num_samples) - np.asarray(num_correct), k)


def pass_hat_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> Array:
    """Chance that all k samples are correct, pass^k: C(c, k) / C(n, k) (Yao et al. 2024, tau-bench); likewise.

    >>> pass_hat_k([4, 4, 4], [0, 3, 4], 2).tolist()
    [0.0, 0.5, 1.0]
    """
    return frac_draws_all(num_samples, num_correct, k)


def why_k_too_large(num_samples: ArrayLike, k: int) -> str | None:
    """Why there is no unbiased estimate at k, a budget or group size, from n of each prompt, [P]; None where there is.

    >>> why_k_too_large([4, 4], 8)
    'k = 8 exceeds the 4 samples of a prompt'
    >>> why_k_too_large([4, 16, 16], 8)
    'k exceeds the samples of some prompts, the fewest 4'
    """
    n = np.asarray(num_samples)
    fewest = int(n.min())
    if fewest >= k:
        return None
    if fewest == n.max():
        return f"k = {k} exceeds the {fewest} sample{'s' * (fewest != 1)} of a prompt"
    return f"k exceeds the samples of some prompts, the fewest {fewest}"  # the same of each k: a table says it once


def estimate_pass_table(
    num_samples: ArrayLike, num_correct: ArrayLike, ks: Sequence[int], *, resampling: Resampling = RESAMPLING
) -> list[tuple[Estimate, Estimate]]:
    """For each k pass@k and pass^k, from the same resamples of n and c, [P] each; undefined where k exceeds an n.

    >>> [(at.value, hat.value) for at, hat in estimate_pass_table([2, 2], [1, 2], [1, 2])]
    [(0.75, 0.75), (1.0, 0.5)]
    """
    n, c = np.asarray(num_samples), np.asarray(num_correct)
    reasons = {k: why_k_too_large(n, k) if len(n) else "there are no prompts" for k in ks}
    possible = [k for k in ks if reasons[k] is None]
    columns = [function(n, c, k) for k in possible for function in (pass_at_k, pass_hat_k)]
    means = iter(bootstrap_means(np.column_stack(columns), resampling=resampling) if columns else ())
    table = []
    for k in ks:
        reason = reasons[k]
        if reason is None:
            table.append((next(means), next(means)))
        else:
            undefined = Estimate.undefined_because(reason, num_units=len(n))
            table.append((undefined, undefined))
    return table


Counts = tuple[NDArray[np.int64], NDArray[np.int64]]  # n and c of each prompt, [P] each

_MAX_BUDGETS = 64  # budgets at which the first policy's curve is computed; it is straight between them
_DOUBLINGS = 20  # larger factors than 2^20 are reported as 2^20
_EQUAL = 1e-12


class CompressionFactor(Struct, frozen=True, kw_only=True):
    """The least m with which pass@(m k) of the first policy reaches pass@k of the second."""

    factor: Estimate  # m, with its interval; undefined where the first's samples do not reach that far
    at_least: float | None  # where m is undefined for that reason: what it is at least, with 97.5 % confidence


def compression_factors(first: Counts, second: Counts, ks: Sequence[int]) -> tuple[CompressionFactor, ...]:
    """How many times the samples the first policy needs, for each budget of the second, on the same prompts.

    The first policy's curve is interpolated linearly between budgets, and from 0 at k = 0 to pass@1; so m is real, and
    below 1 where the second is the worse one. Its interval holds the budgets at which Student's interval of the
    difference, paired by prompt, holds zero (as Fieller 1954 does for a ratio); quantiles over resamples of prompts
    held m less often (89 % at 64 prompts, where this holds 94 %).

    >>> import numpy as np
    >>> n, c = np.full(20, 8), np.array([1, 3] * 10)
    >>> once, twice = compression_factors((n, c), (n, np.minimum(2 * c, 8)), [1, 2])
    >>> round(once.factor.value, 2), round(twice.factor.value, 2)
    (2.35, 2.0)
    """
    max_budget, num_prompts = int(first[0].min()), len(first[0])
    budgets = np.unique(np.round(np.geomspace(1, max_budget, _MAX_BUDGETS))).astype(np.int64)
    curves = np.column_stack([np.zeros(num_prompts), *(pass_at_k(*first, int(k)) for k in budgets)])
    budgets_from_zero = np.concatenate([[0.0], budgets.astype(np.float64)])
    factors = []
    for k in ks:
        reason = why_k_too_large(second[0], k)
        target = None if reason else pass_at_k(*second, k)
        if target is not None and not np.any(target):
            reason = f"the second solves no prompt at k = {k}, so no sample of the first is needed"
        if target is None or reason:
            unknown = Estimate.undefined_because(reason or "", num_units=num_prompts)
            factors.append(CompressionFactor(factor=unknown, at_least=None))
        else:
            factors.append(_factor(k, curves - target[:, None], budgets_from_zero))
    return tuple(factors)


def least_sharpening(first: Counts, second: Counts, *, resampling: Resampling = RESAMPLING) -> float | None:
    """The largest M such that best of M of the first policy is refuted by what the second newly solves.

    Best of any m up to M has q <= M p at every prompt, so (1-p)^(n-1) q^j (q - M p) <= 0 for j = 0 and j = 1, and so
    its mean over any prompts. The mean is estimated without bias from the prompts that the first solves never or once:
    n - 1 of its samples choose the prompts that they leave unsolved, and the remaining one, each in turn, says how
    often the first solves them after all. That is Good's and Turing's estimate of the unseen, set against the second
    policy's rate of solving it. No distribution of pass rates is assumed, so none can explain the difference away. With
    95 % confidence, half of the error for each j; None where not even q = p is refuted.

    >>> import numpy as np
    >>> n, hard = np.full(400, 64), np.arange(400) < 200
    >>> round(least_sharpening((n, np.where(hard, 0, 32)), (n, np.where(hard, 20, 32))))
    1045
    >>> least_sharpening((n, np.where(hard, 0, 32)), (n, np.where(hard, 0, 32))) is None
    True
    """
    (n, c), (num_second, _) = first, second
    unsolved, held_out = (c == 0) + (c == 1) / n, (c == 1) * (n.min() / n)
    refuted = []
    for power in range(min(2, int(num_second.min()))):
        weight = np.ones(len(n)) if power == 0 else pass_hat_k(*second, power)
        gained, missed = unsolved * pass_hat_k(*second, power + 1), held_out * weight
        lost, won = bootstrap_means(np.column_stack([missed, gained]), resampling=resampling)
        correlation = correlation_of_means((missed, gained))
        refuted.append(_largest_refuted(lost, won, correlation, 1.0 / float(n.min())))
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


def _factor(k: int, differences: Array, budgets: Array) -> CompressionFactor:
    """From the first policy's estimate at each budget minus the second's at k, [P, budgets]."""
    num_prompts, mean = len(differences), differences.mean(axis=0)
    value = _zero_of(mean, budgets) / k
    if num_prompts < FEW_UNITS:
        low = high = value
    else:
        error = differences.std(axis=0, ddof=1) / np.sqrt(num_prompts)
        half = student_quantile(num_prompts - 1) * error
        low, high = _zero_of(mean + half, budgets) / k, _zero_of(mean - half, budgets) / k
    if np.isinf(value) or np.isinf(high):
        reason = f"the {budgets[-1]:g} samples of the first may not reach the second's pass@{k}: m is open upwards"
        at_least = None if num_prompts < FEW_UNITS else min(low, float(budgets[-1]) / k)
        return CompressionFactor(factor=Estimate.undefined_because(reason, num_units=num_prompts), at_least=at_least)
    if low == high:
        return CompressionFactor(factor=Estimate.exact(value, num_units=num_prompts), at_least=None)
    return CompressionFactor(factor=Estimate(value=value, low=low, high=high, num_units=num_prompts), at_least=None)


def _zero_of(curve: Array, budgets: Array) -> float:
    """The budget after which a curve that rises is not below zero any more; infinite where it stays below."""
    below = np.flatnonzero(curve < -_EQUAL)
    after = 0 if not len(below) else int(below[-1]) + 1
    if after == len(curve):
        return float(np.inf)
    if after == 0:
        return 0.0
    part = -curve[after - 1] / (curve[after] - curve[after - 1])
    return float(budgets[after - 1] + part * (budgets[after] - budgets[after - 1]))


_FEWEST = 5  # prompts with several attempts, and prompts with fewer than others have, that are not so by chance


def first_attempts(num_samples: NDArray[np.int64], num_correct: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Whether each prompt passes at its first attempt, 0 or 1, [P], where attempts at each end once one passes.

    Returns:
        None where some prompt passes twice, or has fewer attempts than others though none passes, or where too few
        prompts have several or fewer.

    >>> first_attempts(np.array([1] * 3 + [2] * 3 + [3] * 2), np.array([1] * 6 + [0] * 2)).tolist()
    [1, 1, 1, 0, 0, 0, 0, 0]
    """
    is_short = num_samples < num_samples.max()
    is_shown = min(np.sum(is_short), np.sum(num_samples > 1)) >= _FEWEST
    if not is_shown or num_correct.max() > 1 or not num_correct[is_short].all():
        return None
    return np.equal(num_samples, 1).astype(np.int64)

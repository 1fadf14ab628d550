"""Pairs of runs that differ in one thing, and changes that went the wrong way: tests, and the price of testing often.

Legend: n pairs, m tests.

Written here, for ``scipy.stats`` has no Holm correction, and its import would take as long as all these tests together;
the formulas are those of its ``ttest_1samp`` and ``permutation_test``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, nctdtrinc, ndtri, stdtr, stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import student_quantile

Array = NDArray[np.float64]

_EXACT = 20  # pairs up to which all 2^n sign flips are gone through: a million sums, 8 MB and some 20 ms at the most
_DRAWS, _AT_ONCE = 20_000, 500
_EQUAL = 1e-12


def student_mean(values: ArrayLike, *, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """A mean with Student's 95 % interval, mean +- t(n-1) sd / sqrt(n): right where values are normal.

    Of values that lie between two ends, as shares do, it is Student's interval of the logit of the mean's position
    between them, with the mean's error on that scale: it cannot leave the range, and near an end it holds the truth
    more often than the plain one cut off (96 % rather than 90 to 93 % of the time for five runs with shares near 0.95).
    An interval of values with one end is cut there; none for one run, or where all are equal.

    Raises:
        ValueError: A value lies outside the range.

    >>> mean = student_mean([0.4, 0.5, 0.6])
    >>> round(mean.low, 3), round(mean.value, 3), round(mean.high, 3)
    (0.252, 0.5, 0.748)
    >>> share = student_mean([0.9, 0.95, 0.97, 0.98], bounds=(0, 1))
    >>> round(share.low, 3), round(share.value, 3), round(share.high, 3)
    (0.852, 0.95, 0.984)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return Estimate.undefined_because("there is no run")
    low, high = bounds
    if np.any(numbers < low - _EQUAL) or np.any(numbers > high + _EQUAL):
        raise ValueError(f"a value lies outside [{low:g}, {high:g}]")
    mean = float(numbers.mean())
    if len(numbers) < 2 or np.ptp(numbers) <= _EQUAL:
        return Estimate.exact(mean, num_units=len(numbers))
    half = float(student_quantile(len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    if not (np.isfinite(low) and np.isfinite(high)):
        return Estimate(value=mean, low=mean - half, high=mean + half, num_units=len(numbers)).within(low, high)
    span = high - low
    share = (mean - low) / span
    reach = half / span / (share * (1 - share))
    ends = low + span * expit(logit(share) + reach * np.array([-1.0, 1.0]))
    return Estimate(value=mean, low=float(ends[0]), high=float(ends[1]), num_units=len(numbers))


def paired_t_p_value(differences: ArrayLike) -> float | None:
    """Two-sided p-value of Student's paired t test; 1 where no pair differs, None where the spread is unknown.

    >>> round(paired_t_p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    numbers = np.asarray(differences, dtype=np.float64)
    if len(numbers) >= 2 and np.all(np.abs(numbers) <= _EQUAL):
        return 1.0
    if len(numbers) < 2 or np.ptp(numbers) <= _EQUAL:
        return None
    t = numbers.mean() / (numbers.std(ddof=1) / np.sqrt(len(numbers)))
    return float(2 * stdtr(len(numbers) - 1, -abs(t)))


def sign_flip_p_value(differences: ArrayLike) -> float | None:
    """p-value of the paired permutation test: how often flipped signs give a mean as far from zero.

    It assumes nothing but that either sign is as likely where there is no difference, and cannot go below 2 / 2^n. All
    2^n flips are gone through for n <= 20, else 20,000 random ones and the observed one. None without pairs.

    >>> sign_flip_p_value([1.0, 2.0, 3.0]), sign_flip_p_value([1.0, -2.0, 3.0])
    (0.25, 0.75)
    """
    numbers = np.asarray(differences, dtype=np.float64)
    if not len(numbers):
        return None
    return float((np.abs(_flipped_sums(numbers)) >= abs(numbers.sum()) - _EQUAL * len(numbers)).mean())


def rise_by_flips(differences: ArrayLike, margin: float) -> float:
    """The share of sign flips of d - margin whose sum is as large as that of the pairs: a test of mean d <= margin.

    Where both sides of a pair come from one process either sign is as likely, and the test is exact for any number of
    pairs and any distribution. 1 where no pair differs from the margin.

    >>> rise_by_flips([1.0, 2.0, 3.0], 0.0), rise_by_flips([1.0, 2.0, 3.0], 2.0)
    (0.125, 0.75)
    """
    shifted = np.asarray(differences, dtype=np.float64) - margin
    shifted = shifted[np.abs(shifted) > _EQUAL]
    return float(np.mean(_flipped_sums(shifted) >= shifted.sum() - _EQUAL * max(len(shifted), 1)))


def _flipped_sums(numbers: Array) -> Array:
    """The sums under all flips of signs or many random ones, the numbers as they are first."""
    sums = np.zeros(1)
    if len(numbers) <= _EXACT:
        for number in numbers:
            sums = np.concatenate([sums + number, sums - number])
        return sums
    rng, signs = np.random.default_rng(0), (-1.0, 1.0)
    drawn = (rng.choice(signs, size=(_AT_ONCE, len(numbers))) @ numbers for _ in range(_DRAWS // _AT_ONCE))
    return np.concatenate([[numbers.sum()], *drawn])


def least_detectable_mean(num_pairs: int, level: float, power: float) -> float:
    """The mean difference, in standard deviations, that sign flips find with some power where differences are normal.

    That of the t test, d = delta / sqrt(n) with delta the noncentrality at which P(T > t(1 - level/2)) is the power.
    Where only differences of one sign all over can reach the level, at least 2 / 2^n, that is the greater one: Phi(d)^n
    is the power.

    >>> round(least_detectable_mean(10, 0.05, 0.8), 2), round(least_detectable_mean(8, 0.0078125, 0.8), 2)
    (1.0, 1.92)
    """
    free = num_pairs - 1
    by_t = float(nctdtrinc(free, 1 - power, float(stdtrit(free, 1 - level / 2)))) / math.sqrt(num_pairs)
    return by_t if 4 / 2**num_pairs <= level else max(by_t, float(ndtri(power ** (1 / num_pairs))))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number by Holm's step-down rule (Holm 1979), in the same order.

    The i-th smallest of m is multiplied by m - i + 1, and none is less than a smaller one's. Rejecting what is then
    below 0.05 keeps the chance of any false rejection below 0.05, whatever the tests have to do with each other. None
    for a test that could not be made, which does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    ranked = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - rank) * p))
        corrected[index] = largest
    return corrected


def rise_by_interval(change: Estimate, margin: float) -> float:
    """The p-value at which the lower end of an interval would reach the margin, by Student's t with num_units - 1.

    0.025 where the lower end of the 95 % interval is the margin.

    Raises:
        ValueError: There is no interval.

    >>> round(rise_by_interval(Estimate(value=0.4, low=0.1, high=0.7, num_units=9), 0.1), 6)
    0.025
    """
    if change.interval is None or change.value is None:
        raise ValueError("a p-value needs an interval")
    reach = change.value - change.interval[0]
    if reach <= 0:
        return 0.0 if change.value > margin else 1.0
    free = max(change.num_units - 1, 1)
    return float(stdtr(free, -(change.value - margin) / reach * student_quantile(free)))

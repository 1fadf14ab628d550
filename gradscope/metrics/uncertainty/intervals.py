"""What every interval shares: 95 %, Student's quantile, and the intervals that need no resampling.

Not from scipy: its Wilson interval (``binomtest``) takes integer counts, and our units are shares of their own;
scipy.stats has no jackknife, and its bootstrap resamples with repetition. Some statistics bear no repetition: a rollout
that is drawn twice is one direction, not two, so a bootstrap of rollouts finds too low a rank. Leaving one out repeats
nothing. For any symmetric function of independent units the jackknife's sum of squares is at least the variance of the
function on one unit less, in the mean (Efron and Stein 1981, The jackknife estimate of variance, Annals of Statistics
9), so intervals are not too narrow on average; of rows whose norms differ by orders of magnitude, simulated ones of
nominal 95 % hold the truth 88 % of times.

scipy is imported where it is used: it takes 0.15 s, and most modules want a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate

COVERAGE = 0.95
"""How often an interval is to hold the truth: as in most papers, so that intervals can be compared."""
UPPER_TAIL = (1 + COVERAGE) / 2  # probability below the upper end of a symmetric interval
QUANTILES = (round((1 - COVERAGE) / 2, 12), UPPER_TAIL)
"""Probabilities of both ends of an interval that is read off a sample; rounded, because 1 - 0.95 is not 0.05 in
binary."""
NORMAL = 1.959963984540054  # the normal quantile of the upper tail, written out so that a module needs no scipy for it


@lru_cache(maxsize=4096)
def student_quantile(degrees_of_freedom: float) -> float:
    """Student's quantile of the upper tail, cached: the half width of a symmetric interval in standard errors.

    >>> round(student_quantile(9), 3)
    2.262
    """
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, UPPER_TAIL))


class Resampling(Struct, frozen=True, kw_only=True):
    """Resamples and their seed."""

    num_resamples: int = 2000
    """Resamples, B: quantiles at 2.5 % and 97.5 % rest on 50 of them each, and their own noise is then a twentieth of
    the interval's width."""
    seed: int = 0  # the same seed and input give the same interval to the last bit


RESAMPLING = Resampling()  # the default of every estimate


Interval = tuple[float, float]


def wilson_interval(share: float, num_units: float) -> Interval:
    """Wilson's 95 % score interval of a share over units (Wilson 1927).

    For units inside (0, 1), or an effective number of them, it is too wide rather than too narrow: their
    variance is at most p (1 - p).

    >>> [round(end, 4) for end in wilson_interval(0.0, 30)]
    [0.0, 0.1135]
    """
    z = NORMAL
    shrink = 1 + z * z / num_units
    center = (share + z * z / (2 * num_units)) / shrink
    half = z * math.sqrt(share * (1 - share) / num_units + (z / (2 * num_units)) ** 2) / shrink
    # At the boundaries the exact end is 0 or 1; rounding must not leave 1e-17 there.
    low = 0.0 if share == 0.0 else max(center - half, 0.0)
    high = 1.0 if share == 1.0 else min(center + half, 1.0)
    return low, high


def image_of_interval(function: Callable[[float], float], ends: Interval, *, turns_at: float) -> Interval:
    """The values over an interval of a function that falls up to ``turns_at`` and rises after it.

    An interval of p that covers with 95 % has an image that covers with at least 95 %; no resampling is needed, and
    none would be right near the minimum, where the function has no slope.

    >>> image_of_interval(lambda p: (p - 0.5) ** 2, (0.25, 1.0), turns_at=0.5)
    (0.0, 0.25)
    """
    images = (function(ends[0]), function(ends[1]))
    low = function(turns_at) if ends[0] < turns_at < ends[1] else min(images)
    return low, max(images)


def bonferroni(estimate: Estimate, num_tests: int) -> Estimate:
    """The estimate with its ends further out, so that it holds jointly with others, as for a normal error (Bonferroni).

    >>> wide = bonferroni(Estimate(value=1.0, low=0.0, high=2.0), 2)
    >>> round(wide.low, 3), round(wide.high, 3)
    (-0.144, 2.144)
    """
    if estimate.value is None or estimate.interval is None:
        return estimate
    from scipy.special import ndtri

    factor = float(ndtri(QUANTILES[0] / num_tests) / ndtri(QUANTILES[0]))
    low, high = (estimate.value + factor * (end - estimate.value) for end in estimate.interval)
    return replace(estimate, low=low, high=high)


def difference_of(first: Estimate, last: Estimate, *, correlation: float = 0.0) -> Estimate:
    """Last minus first from their own intervals (MOVER: Zou & Donner 2008, Statistics in Medicine 27).

    Each end takes the distances on its own side, so the difference is as skewed as its parts are. With values x and y,
    d = y - x, a = y - low y, b = high x - x and correlation r the lower end is d - sqrt(a^2 + b^2 - 2 r a b); the upper
    end likewise. A side without an interval counts as exact; undefined where either is.

    >>> difference_of(Estimate(value=1.0, low=0.7, high=1.3), Estimate(value=3.0, low=2.6, high=3.4)).interval
    (1.5, 2.5)
    """
    if (reason := first.undefined or last.undefined) is not None:
        return Estimate.undefined_because(reason)
    x, y = first.value or 0.0, last.value or 0.0
    if first.interval is None and last.interval is None:
        return Estimate.exact(y - x)
    (x_low, x_high), (y_low, y_high) = first.ends, last.ends
    return Estimate(
        value=y - x,
        low=y - x - _reach(y - y_low, x_high - x, correlation),
        high=y - x + _reach(y_high - y, x - x_low, correlation),
        num_units=min(first.num_units, last.num_units),
    )


def ratio_of(first: Estimate, last: Estimate, *, correlation: float = 0.0) -> Estimate:
    """Last over first, both at least 0, from their own intervals: as :func:`difference_of` of their logarithms.

    Without an interval where that of the first reaches 0, undefined where it is 0 or either is undefined.

    >>> whole, half = Estimate(value=1.0, low=0.5, high=2.0), Estimate.exact(0.5)
    >>> ratio_of(whole, half)
    Estimate(value=0.5, low=0.25, high=1.0, num_units=0, undefined=None)
    >>> ratio_of(Estimate.exact(0.0), half).undefined
    'it is relative to zero'
    """
    if (reason := first.undefined or last.undefined) is not None:
        return Estimate.undefined_because(reason)
    x, y = first.value or 0.0, last.value or 0.0
    if x == 0.0:
        return Estimate.undefined_because("it is relative to zero", num_units=first.num_units)
    num_units = min(first.num_units, last.num_units)
    (x_low, x_high), (y_low, y_high) = first.ends, last.ends
    if x_low <= 0.0 or (first.interval is None and last.interval is None):
        return Estimate.exact(y / x, num_units=num_units)
    if y == 0.0:
        return Estimate(value=0.0, low=0.0, high=y_high / x_low, num_units=num_units)
    high = y / x * math.exp(_reach(math.log(y_high / y), math.log(x / x_low), correlation))
    below = _reach(math.log(y / y_low), math.log(x_high / x), correlation) if y_low > 0.0 else math.inf
    return Estimate(value=y / x, low=y / x * math.exp(-below), high=high, num_units=num_units)


def _reach(last: float, first: float, correlation: float) -> float:
    """How far the interval of the difference reaches, from how far those of both sides do."""
    return math.sqrt(max(last**2 + first**2 - 2 * correlation * last * first, 0.0))


_OUTSIDE = 1e-3  # share of new values that would lie outside: one true match in a thousand is missed


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval in which one more value of a normal sample would lie, 99.9 % of the time.

    Source: Student's t on the standard deviation of a difference between a new value and the mean, s sqrt(1 + 1/n).

    Raises:
        ValueError: There are fewer than two values.

    >>> low, high = prediction_interval([1.0, 1.1, 0.9, 1.0])
    >>> round(low, 2), round(high, 2)
    (-0.18, 2.18)
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        raise ValueError("a prediction interval needs two values or more")
    array = np.asarray(values, dtype=np.float64)
    spread = float(array.std(ddof=1)) * math.sqrt(1 + 1 / len(array))
    half = float(stdtrit(len(array) - 1, 1 - _OUTSIDE / 2)) * spread
    return float(array.mean()) - half, float(array.mean()) + half


_MIN_UNITS = 4  # units of a stratum below which leaving one out leaves too little
_NO_SPREAD = 1e-24  # variance over the squared value that is rounding


def jackknife(value: float, left_out: Sequence[ArrayLike], *, low: float, high: float) -> Estimate:
    """A statistic of independent units in strata, with its interval.

    ``left_out`` is the statistic without each unit, by stratum, [J][n], NaN where it does not exist. The variance is
    the sum over strata of (n - 1)/n sum_i (v_i - mean v)^2, v_i the statistic without unit i of the stratum; the
    interval is Student's with sum (n - 1) degrees of freedom, cut at the statistic's range. Undefined where a stratum
    is too small, or the statistic hangs on a single unit.

    >>> values = np.array([1.0, 2.0, 3.0, 6.0])
    >>> without = [(values.sum() - values) / 3]
    >>> estimate = jackknife(3.0, without, low=0.0, high=10.0)  # a mean: Student's own interval
    >>> round(estimate.value, 2), round(estimate.low, 2), round(estimate.high, 2)
    (3.0, 0.0, 6.44)
    """
    strata = [np.asarray(values, dtype=np.float64) for values in left_out]
    fewest = min((len(values) for values in strata), default=0)
    if fewest < _MIN_UNITS:
        return Estimate.undefined_because(f"leaving one of {fewest} out leaves too little", num_units=fewest)
    if any(np.isnan(values).any() for values in strata):
        reason = "it hangs on a single unit, without which it does not exist"
        return Estimate.undefined_because(reason, num_units=fewest)
    variance = sum((len(values) - 1) / len(values) * float(np.sum((values - values.mean()) ** 2)) for values in strata)
    half = student_quantile(sum(len(values) - 1 for values in strata)) * math.sqrt(variance)
    return Estimate(
        value=value,
        low=min(value, max(low, value - half)),
        high=max(value, min(high, value + half)),
        num_units=sum(len(values) for values in strata),
    )


def crossed_jackknife(value: float, left_out: Sequence[ArrayLike], *, low: float, high: float) -> Estimate:
    """A statistic of every pair of two samples, such as training and held-out prompts, with its interval.

    ``left_out`` is the statistic without each unit, by sample, two units or more each. The variance is the sum of what
    each sample alone would have, (n - 1)/n sum_i (v_i - mean v)^2 over each; what a pair has of its own counts twice,
    so it is rather too large (Owen 2007, The pigeonhole bootstrap, Annals of Applied Statistics 1). The interval is
    Student's with Satterthwaite's degrees of freedom, cut at the statistic's range; none where no unit changes
    anything.

    >>> rows, columns = np.array([1.0, 2.0, 3.0, 6.0]), np.array([0.0, 0.0, 1.0])
    >>> means = [(rows.sum() - rows) / 3 + columns.mean(), rows.mean() + (columns.sum() - columns) / 2]
    >>> estimate = crossed_jackknife(10 / 3, means, low=-10.0, high=10.0)
    >>> round(estimate.value, 2), round(estimate.low, 2), round(estimate.high, 2)
    (3.33, 0.03, 6.63)
    """
    samples = [np.asarray(values, dtype=np.float64) for values in left_out]
    parts = [(len(values) - 1) / len(values) * float(np.sum((values - values.mean()) ** 2)) for values in samples]
    variance, num_units = sum(parts), sum(map(len, samples))
    if variance <= _NO_SPREAD * value**2:
        return Estimate.exact(value, num_units=num_units)
    free = variance**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, samples, strict=True))
    half = student_quantile(free) * math.sqrt(variance)
    return Estimate(value=value, low=max(low, value - half), high=min(high, value + half), num_units=num_units)

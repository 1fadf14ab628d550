"""Intervals by leaving one unit out, for statistics that resampling with repetition would break.

A rank is such a statistic: a rollout that is drawn twice is one direction, not two, so a bootstrap of rollouts finds
too few. Leaving one out repeats nothing. For any symmetric function of independent units the sum of squares below is at
least the variance of the function on one unit less, in the mean (Efron and Stein 1981, The jackknife estimate of
variance, Annals of Statistics 9), so intervals are not too narrow on average; of rows whose norms differ by orders of
magnitude, simulated ones of nominal 95 % hold the truth 88 % of times.

Written here, for scipy.stats has no jackknife: its bootstrap resamples with repetition.

Shapes: J strata of n units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.level import student_quantile

_FEWEST = 4
"""Units of a stratum below which leaving one out leaves too little."""
_NO_SPREAD = 1e-24
"""Variance over the squared value that is rounding."""


def jackknife(value: float, left_out: Sequence[ArrayLike], *, low: float, high: float) -> Estimate:
    """A statistic of independent units in strata, with its interval.

    The variance is the sum over strata of (n - 1)/n sum_i (v_i - mean v)^2, v_i the statistic without unit i of the
    stratum; the interval is Student's with sum (n - 1) degrees of freedom, cut at the statistic's range.

    Args:
        value: The statistic on all units.
        left_out: The statistic without each unit, by stratum, [J][n]; NaN where it does not exist.
        low: Least value that the statistic can take.
        high: Largest value.

    Returns:
        The estimate; undefined where a stratum is too small, or the statistic hangs on a single unit.

    Example:
        >>> values = np.array([1.0, 2.0, 3.0, 6.0])
        >>> without = [(values.sum() - values) / 3]
        >>> estimate = jackknife(3.0, without, low=0.0, high=10.0)  # a mean: Student's own interval
        >>> round(estimate.value, 2), round(estimate.low, 2), round(estimate.high, 2)
        (3.0, 0.0, 6.44)
    """
    strata = [np.asarray(values, dtype=np.float64) for values in left_out]
    fewest = min((len(values) for values in strata), default=0)
    if fewest < _FEWEST:
        return Estimate.undefined_because(f"leaving one of {fewest} out leaves too little", num_units=fewest)
    if any(np.isnan(values).any() for values in strata):
        return Estimate.undefined_because(
            "it hangs on a single unit, without which it does not exist", num_units=fewest
        )
    variance = sum((len(values) - 1) / len(values) * float(np.sum((values - values.mean()) ** 2)) for values in strata)
    quantile = student_quantile(sum(len(values) - 1 for values in strata))
    half = quantile * math.sqrt(variance)
    return Estimate(
        value=value,
        low=min(value, max(low, value - half)),
        high=max(value, min(high, value + half)),
        num_units=sum(len(values) for values in strata),
    )


def crossed_jackknife(value: float, left_out: Sequence[ArrayLike], *, low: float, high: float) -> Estimate:
    """A statistic of every pair of two samples, such as training and held-out prompts, with its interval.

    The variance is the sum of what each sample alone would have, (n - 1)/n sum_i (v_i - mean v)^2 over each; what a
    pair has of its own counts twice, so it is rather too large (Owen 2007, The pigeonhole bootstrap, Annals of Applied
    Statistics 1). The interval is Student's with Satterthwaite's degrees of freedom, cut at the statistic's range.

    Args:
        value: The statistic on all pairs.
        left_out: The statistic without each unit, by sample, two units or more each.
        low: Least value that the statistic can take.
        high: Largest value.

    Returns:
        The estimate; without an interval where no unit changes anything.

    Example:
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

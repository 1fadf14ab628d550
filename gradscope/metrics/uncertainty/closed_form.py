"""Intervals in closed form: of a share, and of a prediction made from a share.

Written here, for scipy's Wilson interval (``binomtest``) takes whole counts, and units here are shares of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from scipy.special import ndtri

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.level import NORMAL, QUANTILES

Interval = tuple[float, float]


def wilson_interval(share: float, num_units: float) -> Interval:
    """Wilson's 95 % score interval of a share over units (Wilson 1927).

    For units in [0, 1] that are not whole it is too wide rather than too narrow: their variance is at most p (1 - p).

    Args:
        share: The share, in [0, 1]; it need not be a whole number of units.
        num_units: Units, at least 1; an effective number need not be whole.

    Returns:
        Both ends.

    Example:
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
    """The values that a function takes over an interval, for a function with a single minimum.

    An interval of p that covers with 95 % has an image that covers with at least 95 %; no resampling is needed, and
    none would be right near the minimum, where the function has no slope.

    Args:
        function: Falls up to ``turns_at`` and rises after it.
        ends: The interval of its argument.
        turns_at: Where its minimum is.

    Returns:
        Its smallest and largest value there.

    Example:
        >>> image_of_interval(lambda p: (p - 0.5) ** 2, (0.25, 1.0), turns_at=0.5)
        (0.0, 0.25)
    """
    at_ends = (function(ends[0]), function(ends[1]))
    low = function(turns_at) if ends[0] < turns_at < ends[1] else min(at_ends)
    return low, max(at_ends)


def bonferroni(estimate: Estimate, num_tests: int) -> Estimate:
    """An interval that holds together with others, as a normal one would widen (Bonferroni's inequality).

    Args:
        num_tests: Numbers whose intervals are to hold at once.

    Returns:
        The estimate with its ends further out; as it was for one test, or without an interval.

    Example:
        >>> wide = bonferroni(Estimate(value=1.0, low=0.0, high=2.0), 2)
        >>> round(wide.low, 3), round(wide.high, 3)
        (-0.144, 2.144)
    """
    if estimate.value is None or estimate.interval is None:
        return estimate
    factor = float(ndtri(QUANTILES[0] / num_tests) / ndtri(QUANTILES[0]))
    low, high = (estimate.value + factor * (end - estimate.value) for end in estimate.interval)
    return replace(estimate, low=low, high=high)

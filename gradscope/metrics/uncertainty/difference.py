"""The difference of two independent estimates, as an estimate."""

from __future__ import annotations

import math

from gradscope.estimate import Estimate


def difference_of(first: Estimate, last: Estimate) -> Estimate:
    """Last minus first of two independent estimates, from their own intervals.

    With d = y - x the ends are d - sqrt((y - low y)^2 + (high x - x)^2) and likewise above (MOVER: Zou & Donner 2008,
    Statistics in Medicine 27).

    Args:
        first: x.
        last: y.

    Returns:
        The difference; without an interval where either has none, undefined where either is.

    Example:
        >>> difference_of(Estimate(value=1.0, low=0.7, high=1.3), Estimate(value=3.0, low=2.6, high=3.4)).low
        1.5
    """
    for side in (first, last):
        if side.undefined is not None:
            return Estimate.because(side.undefined)
    x, y = first.value or 0.0, last.value or 0.0
    if first.low is None or first.high is None or last.low is None or last.high is None:
        return Estimate.exact(y - x)
    return Estimate(
        value=y - x,
        low=y - x - math.hypot(y - last.low, first.high - x),
        high=y - x + math.hypot(last.high - y, x - first.low),
        num_units=min(first.num_units, last.num_units),
    )

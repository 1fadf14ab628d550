"""The difference of two estimates, and their ratio, as estimates."""

from __future__ import annotations

import math

from gradscope.estimate import Estimate


def difference_of(first: Estimate, last: Estimate, *, correlation: float = 0.0) -> Estimate:
    """Last minus first from their own intervals (MOVER: Zou & Donner 2008, Statistics in Medicine 27).

    Each end takes the distances on its own side, so the difference is as skewed as its parts are. With values x and y,
    d = y - x, a = y - low y, b = high x - x and correlation r the lower end is d - sqrt(a^2 + b^2 - 2 r a b); the upper
    end likewise. A side without an interval is taken for exact.

    Args:
        first: x.
        last: y.
        correlation: Of the two estimates; 0 where they are independent.

    Returns:
        The difference; without an interval where neither side has one, undefined where either is.

    Example:
        >>> difference_of(Estimate(value=1.0, low=0.7, high=1.3), Estimate(value=3.0, low=2.6, high=3.4)).interval
        (1.5, 2.5)
    """
    for side in (first, last):
        if side.undefined is not None:
            return Estimate.undefined_because(side.undefined)
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

    Args:
        first: x.
        last: y.
        correlation: Of the two estimates; 0 where they are independent.

    Returns:
        The ratio; without an interval where that of x reaches 0, undefined where x is 0 or either is undefined.

    Example:
        >>> whole, half = Estimate(value=1.0, low=0.5, high=2.0), Estimate.exact(0.5)
        >>> ratio_of(whole, half)
        Estimate(value=0.5, low=0.25, high=1.0, num_units=0, undefined=None)
        >>> ratio_of(Estimate.exact(0.0), half).undefined
        'it is relative to zero'
    """
    for side in (first, last):
        if side.undefined is not None:
            return Estimate.undefined_because(side.undefined)
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

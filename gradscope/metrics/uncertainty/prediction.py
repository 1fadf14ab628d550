"""Where one more value of a sample would lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

_OUTSIDE = 1e-3
"""Share of further values that would lie outside: one true match in a thousand is missed."""


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval in which one more value of a normal sample would lie, 99.9 % of the time.

    Source: Student's t on the standard deviation of a difference between a new value and the mean, s sqrt(1 + 1/n).

    Args:
        values: The sample, two or more.

    Returns:
        Its ends; the mean twice where all values are equal.

    Raises:
        ValueError: There are fewer than two values.

    Example:
        >>> low, high = prediction_interval([1.0, 1.1, 0.9, 1.0])
        >>> round(low, 2), round(high, 2)
        (-0.18, 2.18)
    """
    if len(values) < 2:
        raise ValueError("a prediction interval needs two values or more")
    array = np.asarray(values, dtype=np.float64)
    spread = float(array.std(ddof=1)) * math.sqrt(1 + 1 / len(array))
    half = float(stdtrit(len(array) - 1, 1 - _OUTSIDE / 2)) * spread
    return float(array.mean()) - half, float(array.mean()) + half

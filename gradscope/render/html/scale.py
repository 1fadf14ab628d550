"""From numbers to places in a drawing: a linear scale with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_LEAST = 1e-300
"""Numbers nearer than that are drawn as one: what lies between them has no digits left for ticks."""
_MOST = 1e306
"""Steps wider than that have no rounder one above that is finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear scale."""

    low: float
    """The number at ``start``."""
    high: float
    """The number at ``end``, above ``low``."""
    start: float
    """The place of ``low`` in the drawing."""
    end: float
    """The place of ``high``."""

    def __call__(self, value: float) -> float:
        """The place of a number; by halves, whose differences are finite whatever a log holds."""
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The size of a drawing in its own units, which a browser scales, and the room around what is drawn."""

    width: float
    """From edge to edge."""
    height: float
    """From top to bottom."""
    left: float
    """Room for the ticks of the vertical axis; more where their labels are longer."""
    right: float
    """Room for half of the last tick's label."""
    top: float
    """Room for the vertical axis's name."""
    bottom: float
    """Room for ticks and the name of the horizontal axis."""
    letter: float
    """Width of a digit where the style sheet prints text largest, on a phone or on paper."""
    most_ticks: int
    """Labels that fit side by side below."""

    def room_left(self, labels: Sequence[str]) -> float:
        """Where the drawing begins, so that none of these labels is cut off."""
        return max(self.left, self.letter * max(map(len, labels), default=0) + 8.0)


def widened(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a scale that hold all numbers, and zero where it is near.

    Returns:
        Low and high, never equal.

    Example:
        >>> widened([1.0, 4.0]), widened([2.0, 2.0]), widened([100.0, 101.0])
        ((0.0, 4.0), (0.0, 2.0), (100.0, 101.0))
    """
    low, high = min(values), max(values)
    if 0 < low <= 0.5 * high or low == high > 0:
        low = 0.0
    if 0.5 * low <= high < 0 or low == high < 0:
        high = 0.0
    return (low, high) if high - low >= _LEAST else (low - 0.5, high + 0.5)


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers between two ends.

    Returns:
        At most so many multiples of 1, 2, 2.5 or 5 times a power of ten, ascending.

    Example:
        >>> ticks(0.0, 1.0), ticks(1.0, 60.0)
        ([0.0, 0.25, 0.5, 0.75, 1.0], [20.0, 40.0, 60.0])
    """
    rough = high / max(most - 1, 1) - low / max(most - 1, 1)
    if rough > _MOST:
        return [0.0] if low <= 0.0 <= high else []
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{multiple * step:.12g}") for multiple in range(first, last + 1)]


def place(value: float) -> str:
    """A coordinate as it is written.

    Returns:
        At most one decimal, a twentieth of a pixel, and the same bytes every time.

    Example:
        >>> place(12.0), place(1 / 3)
        ('12', '0.3')
    """
    return f"{value:.1f}".removesuffix(".0")

"""A curve in one line of text, for a terminal: `▁▂▄▆█`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_MISSING, _NOT_FINITE = "·", "!"


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = 40) -> str:
    """Values as bars of eight heights.

    Args:
        values: By step; None where a step has no value.
        low: The value of the lowest bar.
        high: The value of the highest bar; at most ``low`` draws every value at the lowest.
        width: Longest line; more values than that are averaged in equal runs.

    Returns:
        One character per value or run of values, a dot where all are missing, an exclamation mark where one is not
        finite.

    Example:
        >>> sparkline([0.0, 0.5, None, 1.0, float("nan")], low=0.0, high=1.0)
        '▁▅·█!'
    """
    return "".join(_bar(value, low, high) for value in _shortened(values, width))


def _shortened(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    edges = [len(values) * edge // width for edge in range(width + 1)]
    runs = [[v for v in values[start:stop] if v is not None] for start, stop in pairwise(edges)]
    return [sum(run) / len(run) if run else None for run in runs]


def _bar(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _MISSING
    if not math.isfinite(value):
        return _NOT_FINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]

"""How far the number of one step lies from those of the steps around it. Shapes: n neighbors of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

NUM_NEIGHBORS = 50
"""Steps around the one in question: enough for a median and a spread, few enough that a trend moves them little."""
FEWEST_NEIGHBORS = 8
"""With fewer a spread says little."""
LEVEL = 0.05
"""Share of runs without an outlier in which the furthest step would lie beyond ``by_chance``."""
_TO_SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
_EFFICIENCY = 0.37
"""Of the median absolute deviation: it tells a spread as well as the standard deviation of so much of the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A step's number beside its neighbors'."""

    typical: float
    """Median of the neighbors."""
    times: float | None
    """The number over that median; None where some step's is negative."""
    deviation: float
    """Standard deviations from it, of logarithms where no step's number is negative; the spread is the neighbors'
    median absolute deviation."""
    by_chance: float
    """What the furthest of as many steps exceeds in one run of twenty, were all of them normal and alike."""
    num_neighbors: int
    """n."""

    @property
    def is_unusual(self) -> bool:
        """Whether it lies above all that chance would do to that many steps."""
        return self.deviation > self.by_chance


def deviation_of(values: Mapping[int, float], step: int, *, num_chosen_from: int) -> Deviation | str:
    """A step's number beside those of the up to 50 steps nearest to it.

    Args:
        values: Step -> number; what is not finite does not count, nor do zeros where no number is negative.
        step: One of them, with a finite number.
        num_chosen_from: Of how many steps this one was chosen for being far off; 1 where it was named beforehand.

    Returns:
        How far off it is, or in a few words why that cannot be told.

    Example:
        >>> found = deviation_of({step: 1 + step % 2 for step in range(20)} | {20: 60.0}, 20, num_chosen_from=21)
        >>> found.times, found.is_unusual
        (40.0, True)
    """
    finite = {at: value for at, value in values.items() if math.isfinite(value)}
    in_logs = min(finite.values()) >= 0  # a norm of zero, of a step without a live group, is of another kind
    if in_logs:
        finite = {at: value for at, value in finite.items() if value > 0}
        if step not in finite:
            return "it is zero"
    own = finite.pop(step)
    nearest = sorted(finite, key=lambda at: (abs(at - step), at))[:NUM_NEIGHBORS]
    if len(nearest) < FEWEST_NEIGHBORS:
        return f"{len(nearest)} other steps have the number, and a spread needs {FEWEST_NEIGHBORS}"
    others = np.array([finite[at] for at in nearest])
    scaled, at = (np.log(others), math.log(own)) if in_logs else (others, own)
    middle = float(np.median(scaled))
    spread = _TO_SIGMA * float(np.median(np.abs(scaled - middle)))
    if spread == 0:
        return "half of the other steps have the same number"
    return Deviation(
        typical=float(np.median(others)),
        times=own / float(np.median(others)) if in_logs else None,
        deviation=(at - middle) / spread,
        by_chance=_by_chance(len(nearest), num_chosen_from),
        num_neighbors=len(nearest),
    )


def _by_chance(num_neighbors: int, num_chosen_from: int) -> float:
    """Student's quantile: the spread and the median are estimates themselves, from few steps poor ones."""
    of_median = math.sqrt(1 + math.pi / (2 * num_neighbors))
    quantile = float(stdtrit(_EFFICIENCY * (num_neighbors - 1), (1 - LEVEL) ** (1 / num_chosen_from)))
    return of_median * quantile

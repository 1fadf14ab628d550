"""Where a number of each step is going: the change along its least-squares line, and how sure that is.

Written here: ``scipy.stats.linregress`` is the same line, behind an import that takes a third of a second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.level import UPPER_TAIL
from gradscope.metrics.uncertainty.steps import FEWEST_STEPS, independent_steps


def trend(steps: ArrayLike, values: ArrayLike) -> Estimate:
    """Change from the first to the last step along the least-squares line, b (x_last - x_first).

    b = sum (x - mean x)(y - mean y) / sum (x - mean x)^2; the interval is Student's,
    b +- t s / sqrt(sum (x - mean x)^2), s^2 the summed squares of the deviations from the line over M - 2, and M - 2
    degrees of freedom. M is N where the deviations are uncorrelated, and at least 3 of them by
    :func:`~gradscope.metrics.uncertainty.steps.independent_steps` where neighboring ones resemble each other. Fewer
    than ten steps do not tell, and are taken for uncorrelated.

    Args:
        steps: Steps, [N].
        values: The number at each, [N].

    Returns:
        The change, in units of the number; undefined with fewer than three steps.

    Raises:
        ValueError: There is not one value a step.

    Example:
        >>> change = trend([1, 2, 3, 4], [0.5, 0.4, 0.2, 0.1])
        >>> round(change.low, 3), round(change.value, 3), round(change.high, 3)
        (-0.603, -0.42, -0.237)
        >>> trend([1, 2], [0.5, 0.4]).undefined
        'a trend needs three steps, there are 2'
    """
    places, numbers = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if places.shape != numbers.shape or places.ndim != 1:
        raise ValueError(f"one value a step is needed, got shapes {places.shape} and {numbers.shape}")
    if len(np.unique(places)) < 3:
        return Estimate.undefined_because(f"a trend needs three steps, there are {len(np.unique(places))}")
    x, y = (places - places.mean()) / np.ptp(places), numbers - numbers.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residual = y - slope * x
    worth = independent_steps(residual, num_fitted=2) if len(x) >= FEWEST_STEPS else float(len(x))
    free = max(worth, 3.0) - 2
    half = float(stdtrit(free, UPPER_TAIL)) * float(np.sqrt(residual @ residual / free / spread))
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=len(x))

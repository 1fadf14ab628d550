"""How sure a mean over training steps is, when neighboring steps resemble each other.

Legend: n steps of the mean, T steps of the run. Student's interval takes steps for independent and is far too narrow;
none of the three remedies here is right for every course, so the widest of them counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.level import student_quantile

Array = NDArray[np.float64]

FEWEST_STEPS = 10
"""With fewer steps no remedy keeps its promise: at a correlation of 0.95 and n = 8 a tenth of equal runs differ."""
_FEWEST_WINDOWS = 4
_MOST_CORRELATED = 0.98


def mean_of_steps(values: ArrayLike, course: ArrayLike) -> Estimate:
    """A mean over steps, with an interval that holds where steps resemble their neighbors.

    The variance of the mean is the one that gives the widest interval of these: s^2 / m with m the number of
    independent steps that n correlated ones are worth (:func:`independent_steps`), m - 1 degrees of freedom; the
    projections on the first 0.41 n^(2/3) cosines (Lazarus, Lewis, Stock & Watson 2018, J. Business & Economic
    Statistics 36), as many degrees of freedom; and the spread, about their line, of the means of windows of n steps
    over the whole run, which sees drifts that are slow beside n. What differs between runs and not within one, such as
    a seed's luck, is in none of them.

    Args:
        values: The number at each step of the mean, [n].
        course: The number at each step of the run, [T].

    Returns:
        The mean; ``num_units`` is the degrees of freedom plus one. Without an interval for fewer than ten steps.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> estimate = mean_of_steps(*[rng.normal(size=40)] * 2)
        >>> round(estimate.low, 2), round(estimate.value, 2), round(estimate.high, 2)
        (-0.6, -0.06, 0.48)
        >>> mean_of_steps([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).interval
    """
    chosen, whole = np.asarray(values, dtype=np.float64), np.asarray(course, dtype=np.float64)
    mean = float(chosen.mean())
    if len(chosen) < FEWEST_STEPS:
        return Estimate.exact(mean, num_units=len(chosen))
    if not np.ptp(chosen):
        return Estimate(value=mean, low=mean, high=mean, num_units=len(chosen))
    half, free = max((student_quantile(free) * variance**0.5, free) for variance, free in _variances(chosen, whole))
    return Estimate(value=mean, low=mean - half, high=mean + half, num_units=round(free) + 1)


def independent_steps(deviations: ArrayLike, *, num_fitted: int = 1, errors: float = 0.0) -> float:
    """How many independent numbers correlated ones are worth, n (1 - r) / (1 + r) at a lag-one correlation of r.

    r has its bias in short courses taken out, r + (1 + 4 r) / n about a mean (Marriott & Pope 1954, Biometrika 41) and
    r + (2 + 5 r) / n about a line (Shaman & Stine 1988, J. American Statistical Association 83, for the least-squares
    estimate), and counts as 0 where it is negative.

    Args:
        deviations: Numbers in order, or what is left of them beside a line, [n].
        num_fitted: 1 for numbers as they are, 2 for what is left beside a line.
        errors: Standard errors, ((1 - r^2) / n)^(1/2), by which the correlation is taken to be larger than it seems.

    Returns:
        At most n.

    Example:
        >>> independent_steps([1.0, -1.0] * 10), independent_steps(range(20)) < 2
        (20.0, True)
    """
    numbers = np.asarray(deviations, dtype=np.float64)
    centered = numbers - numbers.mean()
    squares = float(centered @ centered)
    raw = float(centered[1:] @ centered[:-1]) / squares if squares else 0.0
    seen = raw + (num_fitted + (3 + num_fitted) * raw) / len(numbers)
    error = float(np.sqrt(max(1 - seen**2, 0.0) / len(numbers)))
    correlation = min(max(seen + errors * error, 0.0), _MOST_CORRELATED)
    return len(numbers) * (1 - correlation) / (1 + correlation)


def _variances(chosen: Array, whole: Array) -> Iterator[tuple[float, float]]:
    """Each remedy's variance of the mean, and its degrees of freedom."""
    worth = max(independent_steps(chosen), 2.0)
    yield float(chosen.var()) / (1 - 1 / worth) / worth, worth - 1
    num_cosines = max(2, int(0.41 * len(chosen) ** (2 / 3)))
    places = np.pi * (np.arange(len(chosen)) + 0.5) / len(chosen)
    waves = np.cos(np.outer(np.arange(1, num_cosines + 1), places))  # [cosines, n]
    yield float(np.mean((waves @ chosen) ** 2)) * 2 / len(chosen) ** 2, num_cosines
    num_windows = len(whole) // len(chosen)
    if num_windows >= _FEWEST_WINDOWS:
        means = whole[-num_windows * len(chosen) :].reshape(num_windows, -1).mean(axis=1)
        line = np.polynomial.Polynomial.fit(np.arange(num_windows), means, 1)
        beside = means - line(np.arange(num_windows))
        yield float(beside @ beside) / (num_windows - 2), num_windows - 2

"""Where a number of each step is going: the change along its least-squares line, and how sure that is.

Written here: ``scipy.stats.linregress`` is the same line, behind an import that takes a third of a second, and takes
steps for independent.

Legend: N steps, J rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.clusters import cluster_numbers
from gradscope.metrics.uncertainty.level import student_quantile
from gradscope.metrics.uncertainty.steps import FEWEST_STEPS, independent_steps

Array = NDArray[np.float64]
_FEWEST = 3
_NOTHING = 1e-9
_ERRORS = 1.5
"""Standard errors by which the correlation of neighboring steps is taken to be larger than seen: the least, in halves,
with which courses without a trend are taken for one in at most 5 %, at correlations up to 0.95 and from 3 steps on."""


def trend(steps: ArrayLike, values: ArrayLike) -> Estimate:
    """Change from the first to the last step along the least-squares line, b (x_last - x_first).

    b = sum (x - mean x)(y - mean y) / sum (x - mean x)^2; the interval is Student's,
    b +- t s / sqrt(sum (x - mean x)^2), s^2 the summed squares of the deviations from the line over M - 2, times
    N / (N - 2), and M - 2 degrees of freedom. M is what the deviations are worth in independent ones by
    :func:`~gradscope.metrics.uncertainty.steps.independent_steps`, at least 3 of them. Fewer than ten steps do not tell
    how neighbors resemble each other, and are taken for worth 3.

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
        (-1.498, -0.42, 0.658)
        >>> trend([1, 2], [0.5, 0.4]).undefined
        'a trend needs three steps, there are 2'
    """
    places, numbers = _checked(steps, values)
    if len(np.unique(places)) < _FEWEST:
        return _too_few(len(np.unique(places)))
    x, y = (places - places.mean()) / np.ptp(places), numbers - numbers.mean()
    spread, num = float(x @ x), len(x)
    slope = float(x @ y) / spread
    residual = y - slope * x
    free = max(_worth(residual), _FEWEST) - 2
    variance = float(residual @ residual) * num / (num - 2) / free / spread
    half = student_quantile(free) * variance**0.5
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=num)


def trend_within(steps: ArrayLike, units: ArrayLike, values: ArrayLike) -> Estimate:
    """The same within units that are seen at several steps, such as prompts that return: each has a level of its own.

    Steps and numbers are those of a unit minus its means, so a change of units is no change. The error is made of sums
    by step, for rows of one step have its luck in common (clusters), and of the correlation of neighboring steps as in
    :func:`trend`; levels that are fitted count as rows that are not there.

    Args:
        steps: The step of each row, [J].
        units: The unit of each row, numbers or strings, [J].
        values: The number of each row, [J].

    Returns:
        The change from the first to the last step of units that return; undefined where these are fewer than three.

    Raises:
        ValueError: There is not one value a step.

    Example:
        >>> change = trend_within([1, 2, 3, 1, 2, 3], list("aaabbb"), [0.0, 0.1, 0.2, 0.7, 0.8, 0.9])
        >>> round(change.value, 3)
        0.2
        >>> trend_within([1, 2, 3], list("abc"), [0.0, 0.1, 0.2]).undefined
        'a trend needs three steps, there are 0'
    """
    places, numbers = _checked(steps, values)
    unit = cluster_numbers(units)
    returns = np.bincount(unit, weights=np.abs(_within(unit, places)))[unit] > _NOTHING
    places, numbers, unit = places[returns], numbers[returns], cluster_numbers(np.asarray(unit)[returns])
    names, step = np.unique(places, return_inverse=True)
    if len(names) < _FEWEST:
        return _too_few(len(names))
    x, y, num = _within(unit, places / np.ptp(places)), _within(unit, numbers), len(names)
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residual = y - slope * x
    left = 1 - (int(unit.max()) + 1) / len(x)
    free = max(_worth(np.bincount(step, weights=residual) / np.bincount(step)) * left, _FEWEST) - 2
    scores = np.bincount(step, weights=x * residual)
    variance = float(scores @ scores) / left * num**2 / (num - 2) / free
    half = student_quantile(free) * variance**0.5 / spread
    return Estimate(value=slope, low=slope - half, high=slope + half, num_units=num)


def _checked(steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    places, numbers = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if places.shape != numbers.shape or places.ndim != 1:
        raise ValueError(f"one value a step is needed, got shapes {places.shape} and {numbers.shape}")
    return places, numbers


def _too_few(number: int) -> Estimate:
    return Estimate.undefined_because(f"a trend needs three steps, there are {number}")


def _worth(deviations: Array) -> float:
    """Independent steps that so many are worth; the least of a trend where they are too few to tell."""
    if len(deviations) < FEWEST_STEPS:
        return float(_FEWEST)
    return independent_steps(deviations, num_fitted=2, errors=_ERRORS)


def _within(unit: NDArray[np.int64], values: Array) -> Array:
    """Numbers minus the means of their units, [J]."""
    return np.asarray(values - (np.bincount(unit, weights=values) / np.bincount(unit))[unit], dtype=np.float64)

"""What the trainer logged of a step stands in where the log of rollouts does not tell; a NaN is never passed over."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.rollouts.run import Run
from gradscope.say import non_finite_word

_LARGEST = 1e100


def first_logged(run: Run, names: Iterable[str]) -> tuple[str, dict[int, float]] | None:
    """The first of some metrics that the trainer logged, at any step: its name, and step -> number."""
    for name in names:
        logged = {step: run.metrics[step][name] for step in run.steps if name in run.metrics.get(step, {})}
        if logged:
            return name, logged
    return None


def logged_estimate(value: float) -> Estimate:
    """A logged number.

    Returns:
        The number without an interval; undefined where it is not finite, or too large to add up.

    Example:
        >>> logged_estimate(0.5).value, logged_estimate(math.nan).undefined
        (0.5, 'the trainer logged NaN')
    """
    if abs(value) < _LARGEST:
        return Estimate.exact(value)
    word = f"{value:g}" if math.isfinite(value) else non_finite_word(value)
    return Estimate.undefined_because(f"the trainer logged {word}")


def mean_as_logged(values: Mapping[int, float]) -> Estimate:
    """The mean over steps of a logged number.

    Args:
        values: Step -> number.

    Returns:
        The mean; undefined where one of them is.

    Example:
        >>> mean_as_logged({1: 0.5, 2: 1.5}).value, mean_as_logged({1: 0.5, 2: math.inf}).undefined
        (1.0, 'the trainer logged Infinity at step 2')
    """
    for step, value in values.items():
        if not logged_estimate(value).is_defined:
            return Estimate.undefined_because(f"{logged_estimate(value).undefined} at step {step}")
    numbers = list(values.values())
    return mean_of_steps(numbers, numbers)

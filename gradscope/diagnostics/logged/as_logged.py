"""Metrics as the trainer logged them: read by name, and their course over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.results.logged import MetricCourse
from gradscope.rollouts.metrics_alone.names import COMMON
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


NO_ROLLOUTS = "the log holds metrics and no rollouts"
"""Why what needs rollouts is undefined."""


def metric_courses(run: Run) -> tuple[MetricCourse, ...]:
    """The common metrics of a run, in the order of reading; those that no step has are left out."""
    found = []
    for metric in COMMON:
        course = {step: values[metric.name] for step, values in sorted(run.metrics.items()) if metric.name in values}
        if course:
            finite = {step: value for step, value in course.items() if math.isfinite(value)} or course
            found.append(
                MetricCourse(
                    name=metric.name,
                    title=metric.title,
                    style=metric.style,
                    mean=_mean(course),
                    largest_step=max(finite, key=lambda step: finite[step]),
                    smallest_step=min(finite, key=lambda step: finite[step]),
                    steps=tuple(course),
                    values=tuple(course.values()),
                )
            )
    return tuple(found)


def _mean(course: dict[int, float]) -> Estimate:
    for step, value in course.items():
        if not logged_estimate(value).is_defined:
            return Estimate.undefined_because(f"{logged_estimate(value).undefined} at step {step}")
    return Estimate.exact(fmean(course.values()), num_units=len(course))

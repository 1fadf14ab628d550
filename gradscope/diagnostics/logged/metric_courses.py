"""The courses of what every trainer logs, of a log that holds metrics and no rollouts."""

from __future__ import annotations

import math
from statistics import fmean

from gradscope.diagnostics.logged.as_logged import logged_estimate
from gradscope.estimate import Estimate
from gradscope.results.logged.metrics import MetricCourse
from gradscope.rollouts.metrics_alone.names import COMMON
from gradscope.rollouts.run import Run

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

"""The numbers that a trainer logged: their first names, means and series."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from statistics import fmean

import numpy as np

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.results import logged as results
from gradscope.rollouts.readers.metrics_alone.naming import COMMON, CommonMetric, is_verdict, naming_of
from gradscope.rollouts.run import Run, StepMetrics
from gradscope.say import non_finite_word

_LARGEST = 1e100


def first_logged(run: Run, names: Iterable[str]) -> tuple[str, dict[int, float]] | None:
    """The first of some metrics that the trainer logged, at any step: its name, and step -> number."""
    steps = set(run.steps)
    for name in names:
        logged = {step: value for step, value in run.step_metrics.by_step(name).items() if step in steps}
        if logged:
            return name, logged
    return None


def logged_value(value: float) -> float | None:
    """A logged number; None where it is not finite, or too large to add up."""
    return value if abs(value) < _LARGEST else None


def logged_estimate(value: float, *, is_share: bool = True) -> Estimate:
    """A logged number, without an interval; undefined where it is not finite, too large to add up or ``not_shares``.

    >>> logged_estimate(0.5).value, logged_estimate(math.nan).undefined
    (0.5, 'the trainer logged NaN')
    """
    if abs(value) < _LARGEST:
        return Estimate.exact(value)
    word = f"{value:g}" if math.isfinite(value) else non_finite_word(value)
    word = word if is_share else "a number that is no share"
    return Estimate.undefined_because(f"the trainer logged {word}")


def mean_as_logged(values: Mapping[int, float]) -> Estimate:
    """The mean over steps of a logged number; undefined where one of them is.

    >>> mean_as_logged({1: 0.5, 2: 1.5}).value, mean_as_logged({1: 0.5, 2: math.inf}).undefined
    (1.0, 'the trainer logged Infinity at step 2')
    """
    return _first_undefined(values) or mean_of_steps(list(values.values()))


def _first_undefined(values: Mapping[int, float], *, is_share: bool = True) -> Estimate | None:
    estimates = ((step, logged_estimate(value, is_share=is_share)) for step, value in values.items())
    reasons = (f"{estimate.undefined} at step {step}" for step, estimate in estimates if not estimate.is_defined)
    return next(map(Estimate.undefined_because, reasons), None)


NO_ROLLOUTS = "the log holds metrics and no rollouts"  # why what needs rollouts is undefined


def common_metrics(run: Run) -> StepMetrics:
    """What a run's trainer logged, also under its common names, as that of metrics alone is."""
    if run.source.kind == "metrics" or not len(run.step_metrics):
        return run.step_metrics
    naming, _ = naming_of(run.step_metrics.columns, {}).checked_against(run.step_metrics)
    return naming.apply(run.step_metrics)


def metric_series(run: Run) -> tuple[results.MetricCourse, ...]:
    """The common metrics of a run, in the order of reading; those that no step has are left out."""
    logged = common_metrics(run)
    return tuple(_series(logged, metric) for metric in COMMON if len(logged.series(metric.name)[0]))


def verdict_series(run: Run) -> tuple[results.MetricCourse, ...]:
    """Held-out scores and shares of correct answers, by their trainer's names, but for copies of the reward."""
    reward = run.step_metrics.by_step("reward")
    names = [name for name in run.step_metrics.columns if is_verdict(name) and run.step_metrics.by_step(name) != reward]
    return tuple(
        _series(run.step_metrics, CommonMetric(name=name, title=name, style="norm", keys=(name,))) for name in names
    )


def _series(logged: StepMetrics, metric: CommonMetric) -> results.MetricCourse:
    steps, values = logged.series(metric.name)
    is_finite = np.isfinite(values)
    chosen = is_finite if is_finite.any() else ~is_finite
    unusable = np.flatnonzero(~(np.abs(values) < _LARGEST))[:1]
    first = dict(zip(steps[unusable].tolist(), values[unusable].tolist(), strict=True))
    broken = _first_undefined(first, is_share=metric.name not in logged.not_shares)
    return results.MetricCourse(
        name=metric.name,
        title=metric.title,
        style=metric.style,
        mean=broken or Estimate.exact(fmean(values.tolist()), num_units=len(steps)),
        largest_step=int(steps[chosen][np.argmax(values[chosen])]),
        smallest_step=int(steps[chosen][np.argmin(values[chosen])]),
        steps=array("q", steps.tobytes()),
        values=array("d", values.tobytes()),
    )

"""Which step stands out, by what the trainer logged of every step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.steps import Deviation, deviation_of
from gradscope.results.norms import SpikeMetric
from gradscope.rollouts.run import Run

_NAMES: tuple[tuple[str, ...], ...] = (
    ("grad_norm",),
    ("kl", "kl_loss", "ppo_kl", "kl_penalty", "mean_kl"),
    ("loss", "pg_loss", "policy_loss"),
)
"""Numbers that jump with an update that went wrong, each by its trainers' names without their prefix; the first that
is logged decides which step stands out, for a gradient is there before a KL moves."""

Courses = Mapping[str, Mapping[int, float]]
"""Name -> step -> what was logged."""


def courses_of(run: Run) -> Courses:
    """The logged courses of these numbers, each by one of its names.

    Returns:
        In the order of :data:`_NAMES`; what no step has is left out.
    """
    found: dict[str, dict[int, float]] = {}
    for names in _NAMES:
        logged = dict.fromkeys(name for values in run.metrics.values() for name in values)
        chosen = next((name for last in names for name in logged if name.rpartition("/")[2] == last), None)
        if chosen is not None:
            found[chosen] = {step: values[chosen] for step, values in sorted(run.metrics.items()) if chosen in values}
    return found


def outstanding_step(courses: Courses) -> int:
    """The step to look at: the first at which a number is none, else where the first course is furthest above others.

    Returns:
        The step.

    Raises:
        InputError: Nothing was logged that could stand out.
    """
    broken = [step for course in courses.values() for step, value in course.items() if not math.isfinite(value)]
    if broken:
        return min(broken)
    for course in courses.values():
        found = {step: deviation_of(course, step, num_chosen_from=len(course)) for step in course}
        known = {step: one.deviation for step, one in found.items() if isinstance(one, Deviation)}
        if known:
            return max(known, key=lambda step: known[step])
    raise InputError(
        "No step can stand out: the gradient norm, the KL or the loss of nine steps or more is not in the log.",
        hint="Name the step with --step, or put the trainer's metrics beside its rollouts.",
    )


def metric_at(name: str, course: Mapping[int, float], step: int, *, was_named: bool) -> SpikeMetric:
    """One number of a step beside those of the steps around it."""
    value = course[step]
    if not math.isfinite(value):
        none = Estimate.undefined_because("it was logged as no finite number")
        return SpikeMetric(name=name, value=none, typical=none, deviation=none, by_chance=none, is_unusual=True)
    found = deviation_of(course, step, num_chosen_from=1 if was_named else len(course))
    if isinstance(found, str):
        none = Estimate.undefined_because(found)
        return SpikeMetric(
            name=name, value=Estimate.exact(value), typical=none, deviation=none, by_chance=none, is_unusual=False
        )
    return SpikeMetric(
        name=name,
        value=Estimate.exact(value),
        typical=Estimate.exact(found.typical, num_units=found.num_neighbors),
        deviation=Estimate.exact(found.deviation, num_units=found.num_neighbors),
        by_chance=Estimate.exact(found.by_chance, num_units=found.num_neighbors),
        is_unusual=found.is_unusual,
    )

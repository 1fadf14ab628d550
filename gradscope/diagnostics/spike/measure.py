"""`gradscope spike`: the step that stands out, and what its gradient is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gradscope.diagnostics.inputs.steps import (
    MeasuredStep,
    computable_steps,
    describe_engine,
    measure_steps,
    with_damage,
)
from gradscope.diagnostics.logged.metric_courses import NO_ROLLOUTS
from gradscope.diagnostics.spike.logged_course import Courses, courses_of, metric_at, outstanding_step
from gradscope.diagnostics.spike.parts import removals_of, rollouts_of, tensors_of, tokens_of
from gradscope.diagnostics.spike.question import SpikeQuestion
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.findings.spike import spike_findings
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.reason import Reason
from gradscope.results.spike import SpikeReport
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.say import as_ranges

MOST_TOKENS = 512
"""Tokens whose gradients are computed: those of the rollouts with the largest parts, as many as there is room for."""


def measure_spike(
    path: str | Path,
    *,
    step: int | None = None,
    tokens: int = MOST_TOKENS,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> SpikeReport:
    """Take a step apart whose gradient norm, KL or loss stands out.

    Args:
        path: A run folder.
        step: The step; None: the one that stands out most.
        tokens: Most tokens whose gradients are computed; 0: none.
        progress: True for a line on stderr, or a callback, told how far the step is.
        read: How to read the run; None: recognize everything.
        engine: How to compute the gradients; None: the defaults.

    Returns:
        What was logged at the step beside the steps around it; its rollouts, tokens and parameters by their part of
        its gradient, and what the norm would have been without the worst of them. Where the gradient cannot be
        recomputed, what the log alone tells, and why.

    Raises:
        InputError: The log holds nothing of the step, or no step can stand out.
    """
    progress = reporter(progress)
    run = read_run(path, read, progress=progress, metrics_alone=True)
    courses = courses_of(run)
    chosen = outstanding_step(courses) if step is None else step
    if chosen not in run.updates and chosen not in run.metrics:
        raise InputError(
            f"{run.source.path} has nothing of step {chosen}.",
            hint=f"It has steps {_ends(run.every_step)}.",
        )
    measured = _measured(run, chosen, tokens, engine or EngineOptions(), progress)
    return _report(run, chosen, courses, measured, was_named=step is not None)


def _ends(steps: Sequence[int]) -> str:
    return f"{min(steps)} to {max(steps)}"


def _measured(
    run: Run, step: int, tokens: int, engine: EngineOptions, progress: ProgressCallback
) -> MeasuredStep | str:
    """The step's gradients, or why there is nothing to compute them from."""
    if run.source.kind == "metrics":
        return NO_ROLLOUTS
    if step not in run.updates:
        return f"the log has no rollouts of step {step}"
    (measured,) = measure_steps(run, [step], engine, progress, SpikeQuestion(most_tokens=tokens))
    return measured


def _why(run: Run, reason: Reason | str | None) -> str:
    """Why there is no gradient, with the steps that have one where the weights of this one are not on disk."""
    text, others = str(reason).rstrip("."), computable_steps(run)
    has_weights = not isinstance(reason, Reason) or reason.cause not in ("weights_missing", "first_weights_missing")
    return text if has_weights or not others else f"{text}; steps that can be: --step {as_ranges(others)}"


def _report(run: Run, step: int, courses: Courses, measured: MeasuredStep | str, *, was_named: bool) -> SpikeReport:
    metrics = tuple(
        metric_at(name, course, step, was_named=was_named) for name, course in courses.items() if step in course
    )
    gram = None if isinstance(measured, str) else measured.gram
    reason = measured if isinstance(measured, str) else measured.reason
    whole = None if gram is None else gram.logged_gram
    why = _why(run, reason) if gram is None else "advantages were not logged for every rollout"
    typical = next((one.typical.value for one in metrics if one.name == "grad_norm"), None)
    answer = () if isinstance(measured, str) else measured.answer
    course = next(iter(courses.values()), {})
    damage = {} if reason is None or isinstance(reason, str) else {step: reason}
    report = SpikeReport(
        source=with_damage(run, damage, ()),
        step=step,
        was_named=was_named,
        metrics=metrics,
        course={at: value for at, value in course.items() if math.isfinite(value)},
        grad_norm=Estimate.undefined_because(why)
        if whole is None
        else Estimate.exact(batch_norm(whole), num_units=len(whole)),
        rollouts=rollouts_of(run.groups_at(step), gram, "the gradient is zero" if whole is not None else why),
        removals=removals_of(gram, typical),
        tokens=tokens_of(answer[0].tokens) if answer else (),
        tensors=tensors_of(answer[0].tensors) if answer else (),
        engine=describe_engine(gram.describe(), {}) if gram is not None else {},
    )
    return spike_findings(report)

"""`gradscope report`: every question that a run's log can answer, each once, in one result.

The log is read once and each gradient is recomputed once; sections only look. What one section lacks never stops
another: it says what is missing and what to log.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from gradscope.copies import as_named
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.inputs.steps import MeasuredStep, measure_steps, missing_weights, select_steps, with_damage
from gradscope.diagnostics.logged.measure import GatheredPolicy
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples
from gradscope.diagnostics.passk.samples import Samples, read_samples, sample_files
from gradscope.diagnostics.replay.measure import ReplayedSteps
from gradscope.diagnostics.report.lengths import Lengths
from gradscope.diagnostics.report.rollouts import read_groups
from gradscope.diagnostics.report.sections.agreement import agreement_section
from gradscope.diagnostics.report.sections.claims import claims_section
from gradscope.diagnostics.report.sections.contributions import contributions_section
from gradscope.diagnostics.report.sections.coverage import coverage_section
from gradscope.diagnostics.report.sections.directions import directions_section, rank_points
from gradscope.diagnostics.report.sections.formulations import formulations_section
from gradscope.diagnostics.report.sections.inputs import ReportInputs, TokenParts, Unavailable
from gradscope.diagnostics.report.sections.length import length_section
from gradscope.diagnostics.report.sections.logged.entropy import entropy_section
from gradscope.diagnostics.report.sections.logged.generation import generation_section
from gradscope.diagnostics.report.sections.logged.metrics_alone import report_of_metrics
from gradscope.diagnostics.report.sections.logged.staleness import staleness_section
from gradscope.diagnostics.report.sections.loss_scale import loss_scale_section
from gradscope.diagnostics.report.sections.replayed import replay_section
from gradscope.diagnostics.report.sections.rewards import rewards_section
from gradscope.diagnostics.report.sections.signal import signal_section
from gradscope.diagnostics.report.sections.tokens import tokens_section
from gradscope.diagnostics.report.sections.zero_loss import zero_loss_section
from gradscope.diagnostics.report.strip import key_numbers
from gradscope.diagnostics.report.tokens import report_tokens, token_parts
from gradscope.errors import GradscopeError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.reason import Reason
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.replay import ReplayReport
from gradscope.results.report import ReportSection, RunReport
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

MOST_STEPS = 4
"""Steps whose gradients are recomputed where none are named: first, last, evenly between, and the largest logged."""
MOST_TOKENS = 512
"""Token rows that are computed where no number is named."""

_SECTIONS: tuple[Callable[[ReportInputs], ReportSection], ...] = (
    signal_section,
    zero_loss_section,
    replay_section,
    directions_section,
    contributions_section,
    tokens_section,
    length_section,
    rewards_section,
    loss_scale_section,
    agreement_section,
    staleness_section,
    entropy_section,
    generation_section,
    coverage_section,
    formulations_section,
    claims_section,
)
_NOT_ASKED: tuple[tuple[MeasuredStep, ...], Unavailable] = (
    (),
    Unavailable(
        reason="Gradients were not recomputed, as asked (--no-gradients).", hint="Leave that option out to get them."
    ),
)
_NO_SAMPLES = Unavailable(
    reason="The run holds no samples of held-out prompts: the steps of a training log are other policies each.",
    hint="Sample the same prompts several times before and after training, and pass both files: --samples BEFORE "
    "--samples AFTER.",
)

Made = TypeVar("Made")


def report_run(
    path: str | Path,
    *,
    steps: Sequence[int] | Literal["all"] | None = None,
    gradients: bool = True,
    tokens: int | None = None,
    samples: Sequence[str | Path] = (),
    success_threshold: float | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> RunReport:
    """Everything that can be said about one run.

    Args:
        path: A run folder or a log.
        steps: Steps whose gradients are recomputed; ``all`` whose weights are on disk, None: at most four of those.
        gradients: Whether to recompute gradients at all; without, no model is loaded.
        tokens: Most tokens whose own gradients are computed, of the rollouts with the largest parts; 0: none,
            None: 512.
        samples: Files of samples of held-out prompts, before and after; none: those of the run folder, if any.
        success_threshold: A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        progress: True for a line on stderr, or a callback, told after each recomputed step and while the rollouts of
            all steps are looked at.
        read: How to read the run; None: recognize everything.
        engine: How to compute the gradients; None: the defaults.

    Returns:
        One section a question.
    """
    progress = reporter(progress)
    read, engine = read or ReadOptions(), engine or EngineOptions()
    run = read_run(path, read, progress=progress, metrics_alone=True, parts_answer=True)
    if run.source.kind == "metrics":
        return report_of_metrics(run, _name(run))
    chosen = _usable_steps(run, steps) if steps is None or steps == "all" else select_steps(run, steps)
    measured, absent = _NOT_ASKED
    most_tokens = MOST_TOKENS if tokens is None else tokens
    if gradients:
        measured, absent = _measured(run, chosen, engine, progress)
    grams = tuple(step.gram for step in measured if step.gram is not None)
    if grams and not any(_has_gradient(gram) for gram in grams):
        absent = _without_gradient(grams)
    replay, policy, lengths = _read_steps(run, _all_steps(run, measured, absent), progress)
    held_out = _or_unavailable(lambda: _samples(run, samples, success_threshold))
    inputs = ReportInputs(
        run=run,
        degeneracy=_or_unavailable(lambda: degeneracy_of_run(run, success_threshold=success_threshold)),
        replay=replay,
        grams=grams,
        no_grams=absent,
        curve=rank_points(grams),
        tokens=_or_unavailable(lambda: report_tokens(run, measured, absent, most_tokens, engine)),
        parts=_parts(run, measured, engine) if most_tokens else TokenParts(),
        samples=() if isinstance(held_out, Unavailable) else held_out,
        passk=held_out
        if isinstance(held_out, Unavailable)
        else _or_unavailable(lambda: pass_at_k_of_samples(held_out)),
        logged=policy.result(run),
        lengths=lengths,
        options=dict(_spelled(read, success_threshold)),
    )
    return RunReport(
        source=with_damage(run, {one.step: one.reason for one in measured if one.reason}, chosen if gradients else ()),
        name=_name(run),
        sections=tuple(section(inputs) for section in _SECTIONS),
        recomputed=tuple(gram.step for gram in grams),
        strip=key_numbers(inputs),
        rollouts=read_groups(run, grams, _threshold(inputs.degeneracy)),
        logged=inputs.logged,
    )


def _name(run: Run) -> str:
    return "/".join(as_named(str(run.path.resolve())).split(os.sep)[-2:]).lstrip("/")


def _threshold(report: DegeneracyReport | Unavailable) -> float | None:
    return None if isinstance(report, Unavailable) else report.success_threshold


def _spelled(read: ReadOptions, success_threshold: float | None) -> Iterator[tuple[str, str]]:
    """How the run was read, for the commands that a page names."""
    yield from read.spelled()
    if success_threshold is not None:
        yield "--success-threshold", str(success_threshold)


def _or_unavailable(make: Callable[[], Made]) -> Made | Unavailable:
    """A result, or what kept it from being made: one unusable part never costs the page."""
    try:
        return make()
    except GradscopeError as error:
        return Unavailable(reason=error.message, hint=error.hint or "")


def _measured(
    run: Run, steps: Sequence[int], options: EngineOptions, progress: ProgressCallback
) -> tuple[tuple[MeasuredStep, ...], Unavailable]:
    """The gradients of the chosen steps, and why there are none where there are none."""
    measured = _or_unavailable(lambda: tuple(measure_steps(run, steps, options, progress, closely=True)))
    if isinstance(measured, Unavailable):
        return (), measured
    reasons = [step.reason for step in measured if step.reason] or [missing_weights(run, run.steps[0])]
    return measured, Unavailable(reason=f"No gradient was recomputed: {reasons[0]}.", hint=reasons[0].advice)


def _parts(run: Run, measured: Sequence[MeasuredStep], options: EngineOptions) -> TokenParts:
    parts = _or_unavailable(lambda: token_parts(run, measured, options))
    return TokenParts() if isinstance(parts, Unavailable) else parts


def _has_gradient(gram: StepGram) -> bool:
    return gram.policy_gram is not None and bool(gram.policy_gram.sum() > 0)


def _without_gradient(grams: Sequence[StepGram]) -> Unavailable:
    """Why steps that were recomputed have no gradient to look into."""
    if all(gram.policy_gram is None for gram in grams):
        return Unavailable(
            reason="The log has no advantages, so no rollout's part of the gradient is known.",
            hint="Log them with the completions (log_completions=True in TRL).",
        )
    steps = ", ".join(str(gram.step) for gram in grams)
    return Unavailable(
        reason=f"The policy gradient of every recomputed step ({steps}) is zero: no group there has unequal rewards.",
        hint="Recompute a step that has a live group: --step N",
    )


def _usable_steps(run: Run, wanted: Literal["all"] | None) -> tuple[int, ...]:
    """The steps whose weights are on disk; of more than are wanted some between first and last, and the spike."""
    usable = [step for step in run.steps if run.weights_before(step) is not None and step not in run.notes]
    last = len(usable) - 1
    if wanted == "all" or last < MOST_STEPS:
        return tuple(usable)
    chosen = [usable[round(quarter * last / (MOST_STEPS - 1))] for quarter in range(MOST_STEPS)]
    spike = max(usable, key=lambda step: _spike_size(run.metrics.get(step, {}).get("grad_norm", 0.0)))
    if spike not in chosen:
        chosen.remove(min(chosen[1:-1], key=lambda step: abs(step - spike)))
    return tuple(sorted({*chosen, spike}))


def _spike_size(grad_norm: float) -> float:
    return grad_norm if math.isfinite(grad_norm) else math.inf


def _all_steps(run: Run, measured: Sequence[MeasuredStep], absent: Unavailable) -> Iterator[MeasuredStep]:
    """Every step of the log; what is arithmetic is replayed at each of them, recomputed or not."""
    done = {step.step: step for step in measured}
    for step, groups in run.by_step():
        if step in done:
            yield done[step]
            continue
        weights, reason = run.weights_before(step), Reason("not_asked", "its gradient was not recomputed for this page")
        if weights is None:
            reason = missing_weights(run, step)
        elif not done:
            reason = Reason("unusable", absent.reason.rstrip("."), absent.hint)
        yield MeasuredStep(step=step, groups=groups, weights=weights, gram=None, reason=reason)


def _read_steps(
    run: Run, steps: Iterable[MeasuredStep], progress: ProgressCallback
) -> tuple[ReplayReport | Unavailable, GatheredPolicy, Lengths]:
    """All that is asked of every rollout, step after step: those of a large log are read once and never all held."""
    replayed, policy, lengths = ReplayedSteps(run), GatheredPolicy(), Lengths()
    failed: Unavailable | None = None
    for done, measured in enumerate(steps, start=1):
        policy.add(measured.step, measured.groups)
        lengths.add(measured.step, measured.groups)
        failed = failed or _or_unavailable(partial(replayed.add, measured))
        progress(done, len(run.steps), "steps read")
    return _or_unavailable(replayed.report) if failed is None else failed, policy, lengths


def _samples(
    run: Run, paths: Sequence[str | Path], success_threshold: float | None
) -> tuple[Samples, ...] | Unavailable:
    """The files that were named, else what the run folder holds."""
    files = [file for path in (paths or (run.path,)) for file in sample_files(path)]
    if files == [run.path] and len(run.steps) > 1:
        return _NO_SAMPLES
    return tuple(read_samples(file, success_threshold=success_threshold) for file in files)

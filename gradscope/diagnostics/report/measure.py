"""`gradscope report`: every question that a run's log can answer, each once, in one result.

The log is read once, each gradient is recomputed once, and sections only read the results. Data that one section
lacks never stop another: it says what is missing and what to log.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradscope.copies import as_named
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.inputs.steps import (
    MeasuredStep,
    measure_steps,
    missing_weights,
    select_steps,
    usable_steps,
    with_damage,
)
from gradscope.diagnostics.logged.metrics import first_logged
from gradscope.diagnostics.logged.policy import POLICY
from gradscope.diagnostics.logged.tokens import METRICS
from gradscope.diagnostics.passk.comparison import Samples
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples, read_samples, sample_files
from gradscope.diagnostics.replay.measure import replay_report, replay_step
from gradscope.diagnostics.report.metrics_alone import report_of_metrics
from gradscope.diagnostics.report.sections import agreement, policy
from gradscope.diagnostics.report.sections.inputs import (
    Lengths,
    ReportInputs,
    TokenParts,
    Unavailable,
    missing_section,
    read_groups,
)
from gradscope.diagnostics.report.sections.loss import loss_scale_section, zero_loss_section
from gradscope.diagnostics.report.sections.reward import reward_section
from gradscope.diagnostics.report.sections.signal import coverage_section, rewards_section, signal_section
from gradscope.errors import GradscopeError, MissingDependencyError
from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import last_fifth, share_at_end
from gradscope.gradients.engine_options import EngineOptions, missing_library
from gradscope.metrics.gram.geometry import GRAD_NORM_TOLERANCE, batch_norm, projection_shares
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.reason import Reason
from gradscope.results.logged import LoggedPolicy
from gradscope.results.norms import ReplayReport, StepReplay
from gradscope.results.rank import RankCurvePoint
from gradscope.results.report import KeyNumber, ReportSection, RunReport
from gradscope.rollouts.groups import GroupsOnDisk, RolloutGroup, groups_at, reward_table
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run, runs_below
from gradscope.rollouts.readers.reduction.processes import in_processes
from gradscope.rollouts.run import Run
from gradscope.say import evenly

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.step_gram import StepGram
    from gradscope.gradients.tokens.measure import RolloutTokens


__all__ = ["report_run", "runs_below"]

MAX_STEPS = 4
"""Steps whose gradients are recomputed where none are named: first, last, evenly between, and the largest logged."""
MAX_TOKENS = 512  # token rows that are computed where no number is named
_MIN_FORKED = 1 << 13  # rollouts of a log whose tokens several processes read, each some of its steps
_CHUNKS = 64  # parts of its steps, which say how far they are


def _gradient_section(name: str) -> Callable[[ReportInputs], ReportSection]:
    def section(inputs: ReportInputs) -> ReportSection:
        absent = inputs.tokens if name == "tokens" else inputs.no_grams
        if isinstance(absent, Unavailable) and (name == "tokens" or not inputs.grams):
            return missing_section(name, absent)
        from gradscope.diagnostics.report.sections import gradient, tokens  # not even loaded where there is none

        made: ReportSection = getattr(tokens if name == "tokens" else gradient, f"{name}_section")(inputs)
        return made

    return section


_SECTIONS: tuple[Callable[[ReportInputs], ReportSection], ...] = (
    reward_section,
    signal_section,
    zero_loss_section,
    agreement.replay_section,
    _gradient_section("rank"),
    _gradient_section("contributions"),
    _gradient_section("tokens"),
    policy.length_section,
    rewards_section,
    loss_scale_section,
    agreement.agreement_section,
    policy.staleness_section,
    policy.entropy_section,
    policy.generation_section,
    coverage_section,
    _gradient_section("formulations"),
    agreement.claims_section,
)
_NO_GRADIENTS: tuple[tuple[MeasuredStep, ...], Unavailable] = (
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


class ReportOptions(Struct, frozen=True, kw_only=True):
    """What a page shows besides the log and the gradients of its rollouts."""

    tokens: int | None = None
    """Most tokens whose own gradients are computed, of the largest rollouts; 0: none, None: 512."""
    samples: Sequence[str | Path] = ()  # of held-out prompts, before and after; none: those of the run folder, if any
    success_threshold: float | None = None
    """A rollout passes when its reward reaches this; None: 1 for rewards of 0/1 or -1/1."""


def report_run(
    path: str | Path,
    *,
    steps: Sequence[int] | Literal["all"] | None = None,
    gradients: bool = True,
    options: ReportOptions | None = None,
    progress: Progress = False,
    read: ReadOptions | None = None,
    engine: EngineOptions | None = None,
) -> RunReport:
    """Everything that can be said about one run, one section per question.

    Args:
        steps: Steps whose gradients are recomputed; ``all`` whose weights are on disk, None: at most four of those.
        gradients: Whether to recompute gradients at all; if not, no model is loaded.
        options: How many tokens, which held-out samples, when a rollout passes; None: the defaults.
    """
    progress = reporter(progress)
    read, engine, options = read or ReadOptions(), engine or EngineOptions(), options or ReportOptions()
    success_threshold = options.success_threshold
    run = read_run(path, read, progress=progress, metrics_alone=True, parts_answer=True)
    if run.source.kind == "metrics":
        return report_of_metrics(run, _name(run), agreement.agreement_as_logged(run))
    chosen = _usable_steps(run, steps) if steps is None or steps == "all" else select_steps(run, steps)
    measured, absent = _NO_GRADIENTS
    most_tokens = MAX_TOKENS if options.tokens is None else options.tokens
    if gradients:
        measured, absent = _measured(run, chosen, engine, progress)
    grams = tuple(step.gram for step in measured if step.gram is not None)
    if grams and not any(gram.policy_gram is not None and gram.policy_gram.sum() > 0 for gram in grams):
        absent = _without_gradient(grams)
    replay, logged, lengths = _read_steps(run, measured, absent, progress)
    held_out = _or_unavailable(lambda: _samples(run, options.samples, success_threshold))
    curve: tuple[RankCurvePoint, ...] = ()
    if grams:
        from gradscope.diagnostics.report.sections.gradient import rank_points

        curve = rank_points(grams)
    parts = _or_unavailable(lambda: token_parts(run, measured, engine)) if measured and most_tokens else TokenParts()
    inputs = ReportInputs(
        run=run,
        degeneracy=_or_unavailable(lambda: degeneracy_of_run(run, success_threshold=success_threshold)),
        replay=replay,
        grams=grams,
        no_grams=absent,
        curve=curve,
        tokens=_or_unavailable(lambda: report_tokens(run, measured, absent, most_tokens, engine)),
        parts=TokenParts() if isinstance(parts, Unavailable) else parts,
        samples=() if isinstance(held_out, Unavailable) else held_out,
        passk=held_out
        if isinstance(held_out, Unavailable)
        else _or_unavailable(lambda: pass_at_k_of_samples(held_out)),
        logged=logged,
        lengths=lengths,
        options=dict(read.spelled())
        | ({} if success_threshold is None else {"--success-threshold": str(success_threshold)}),
    )
    groups = None if isinstance(inputs.degeneracy, Unavailable) else inputs.degeneracy
    reasons = {step.step: step.reason for step in measured if step.reason}
    return RunReport(
        source=with_damage(run, reasons, chosen if gradients else ()),
        name=_name(run),
        sections=tuple(section(inputs) for section in _SECTIONS),
        recomputed=tuple(gram.step for gram in grams),
        strip=key_numbers(inputs),
        rollouts=read_groups(
            run,
            grams,
            groups.success_threshold if groups else None,
            groups.prompts.reward if groups and groups.by_reward else None,
        ),
        logged=inputs.logged,
    )


def _name(run: Run) -> str:
    return "/".join(as_named(str(run.path.resolve())).split(os.sep)[-2:]).lstrip("/")


def _or_unavailable(make: Callable[[], Made]) -> Made | Unavailable:
    """A result, or why it could not be made: one unusable part never costs the page."""
    try:
        return make()
    except MissingDependencyError:
        raise
    except GradscopeError as error:
        return Unavailable(reason=error.message, hint=error.hint or "")


def _measured(
    run: Run, steps: Sequence[int], options: EngineOptions, progress: ProgressCallback
) -> tuple[tuple[MeasuredStep, ...], Unavailable]:
    if run.steps and not any(run.weights_before(step) for step in steps) and (missing_library() or not steps):
        reason = missing_weights(run, run.steps[0])
        return (), Unavailable(reason=f"No gradient was recomputed: {reason}.", hint=reason.advice)
    measured = _or_unavailable(lambda: tuple(measure_steps(run, steps, options, progress, bound_rounding=True)))
    if isinstance(measured, Unavailable):
        return (), measured
    reasons = [step.reason for step in measured if step.reason] or [missing_weights(run, run.steps[0])]
    return measured, Unavailable(reason=f"No gradient was recomputed: {reasons[0]}.", hint=reasons[0].advice)


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
    usable = usable_steps(run, run.steps)
    if wanted == "all" or len(usable) <= MAX_STEPS:
        return usable
    chosen = list(evenly(usable, MAX_STEPS))
    norms = run.step_metrics.by_step("grad_norm")
    spike = max(usable, key=lambda step: norms.get(step, 0.0) if math.isfinite(norms.get(step, 0.0)) else math.inf)
    if spike not in chosen:
        chosen.remove(min(chosen[1:-1], key=lambda step: abs(step - spike)))
    return tuple(sorted({*chosen, spike}))


class _ReadSteps(Struct):
    """All that is asked of every rollout, of the steps so far."""

    policy: dict[int, dict[str, Any]] = {}
    lengths: Lengths = field(default_factory=Lengths)
    replays: list[StepReplay | Unavailable] = []


def _read_steps(
    run: Run, measured: Sequence[MeasuredStep], absent: Unavailable, progress: ProgressCallback
) -> tuple[ReplayReport | Unavailable, LoggedPolicy, Lengths]:
    """What is asked of every rollout: those of a large log are read once, a step at a time, and never all held."""
    recomputed, num_steps, all_read = {step.step: step for step in measured}, len(run.steps), _ReadSteps()

    def read(steps: Iterable[tuple[int, Sequence[RolloutGroup]]]) -> _ReadSteps:
        part_read = _ReadSteps()
        for number, groups in steps:
            step = recomputed.get(number) or _not_recomputed(run, number, groups, absent if not measured else None)
            part_read.policy[number] = POLICY.reduce_step(number, step.groups)
            if run.measured is None:
                part_read.lengths.add_step(step.groups)
            part_read.replays.append(_or_unavailable(partial(replay_step, run, step, GRAD_NORM_TOLERANCE)))
        return part_read

    if run.measured is not None:
        all_read.lengths.add(run.measured)
    parts: Iterable[_ReadSteps] = map(read, ([step] for step in run.by_step()))
    groups = run.groups
    # no forks once recomputed steps have brought PyTorch's threads and memory
    on_disk = isinstance(groups, GroupsOnDisk) and not groups.reads_all and not measured
    if on_disk and run.measured is None and len(reward_table(groups).reward) >= _MIN_FORKED:
        chunks = np.array_split(run.steps, min(num_steps, _CHUNKS))
        parts = in_processes(lambda steps: read((step, groups_at(groups, step)) for step in steps.tolist()), chunks)
    for part in parts:
        all_read.policy |= part.policy
        all_read.lengths.join(part.lengths)
        all_read.replays += part.replays
        progress(len(all_read.policy), num_steps, "steps read")
    failed = next((replay for replay in all_read.replays if isinstance(replay, Unavailable)), None)
    replayed = [replay for replay in all_read.replays if not isinstance(replay, Unavailable)]
    described = [step.recomputed.described for step in measured if step.recomputed]
    replay = _or_unavailable(lambda: replay_report(run, replayed, described)) if failed is None else failed
    return replay, POLICY.combine(all_read.policy, run, RESAMPLING), all_read.lengths


def _not_recomputed(run: Run, step: int, groups: Sequence[RolloutGroup], absent: Unavailable | None) -> MeasuredStep:
    """A step whose gradient was not recomputed: what is arithmetic is replayed all the same."""
    weights, reason = run.weights_before(step), Reason("not_asked", "its gradient was not recomputed for this page")
    if weights is None:
        reason = missing_weights(run, step)
    elif absent is not None:
        reason = Reason("unusable", absent.reason.rstrip("."), absent.hint)
    return MeasuredStep(step=step, groups=tuple(groups), weights=weights, gram=None, reason=reason)


def _samples(
    run: Run, paths: Sequence[str | Path], success_threshold: float | None
) -> tuple[Samples, ...] | Unavailable:
    """The files that were named, else what the run folder holds."""
    files = [file for path in (paths or (run.path,)) for file in sample_files(path)]
    if files == [run.path] and len(run.steps) > 1:
        return _NO_SAMPLES
    return tuple(read_samples(file, success_threshold=success_threshold) for file in files)


_NO_TOKENS = Unavailable(
    reason="The gradients of single tokens were not computed, as asked (--max-tokens 0).",
    hint="Leave that option out to get them.",
)


def report_tokens(
    run: Run, measured: Sequence[MeasuredStep], absent: Unavailable, max_tokens: int, options: EngineOptions
) -> tuple[RolloutTokens, ...] | Unavailable:
    """The tokens of the rollouts with the largest part of the largest gradient, up to so many, or why none."""
    # The weights of their step are loaded again.
    if not max_tokens:
        return _NO_TOKENS
    live = [
        (step, step.gram, step.gram.policy_gram)
        for step in measured
        if step.gram is not None and step.gram.policy_gram is not None and _squared_norm(step.gram) > 0
    ]
    if not live:
        return absent
    largest, gram, matrix = max(live, key=lambda step: _squared_norm(step[1]))
    from gradscope.gradients.tokens.measure import measure_rollout_tokens

    shares = projection_shares(matrix)
    order = [index for index in np.argsort(-np.abs(shares), kind="stable").tolist() if shares[index] != 0]
    return measure_rollout_tokens(_prepared(run, largest, options), gram, order, max_tokens=max_tokens)


def token_parts(run: Run, measured: Sequence[MeasuredStep], options: EngineOptions) -> TokenParts:
    """What the tokens of the steps with a gradient say of entropy, reference and turns, and what became of them."""
    # Two backward passes a step and one more a turn; two forward passes under later weights. Nothing where several
    # processes share the model.
    from gradscope.diagnostics.rank.tokens import (
        entropy_change,
        logprob_change,
        token_changes,
        token_kl,
        turn_shares,
        weigh_step,
        with_later,
    )
    from gradscope.gradients.processes import num_connected

    weighed, groups = {}, {}
    for step in measured:
        if step.gram is not None and _squared_norm(step.gram) > 0 and num_connected() == 1:
            weighed_step = weigh_step(_prepared(run, step, options), step.gram)
            if weighed_step is not None:
                weighed[step.step], groups[step.step] = weighed_step, step.groups
    last = max(weighed, default=0)
    not_followed = Estimate.undefined_because(f"only step {last} is followed on this page")
    later, _ = token_changes(run, {last: weighed[last].tokens} if weighed else {}, options)
    logged = first_logged(run, METRICS)
    predicted = [entropy_change(step, tokens, logged[1] if logged else {}) for step, tokens in weighed.items()]
    kl = (token_kl(step, tokens, groups[step]) for step, tokens in weighed.items())
    return TokenParts(
        weighed=weighed,
        entropy=tuple(
            with_later(change, weighed[change.step].tokens, later[change.step])
            if change.step in later
            else replace(change, measured=change.measured if change.step == last else not_followed)
            for change in predicted
        ),
        kl=tuple(distance for distance in kl if distance is not None),
        turns=tuple(share for step, tokens in weighed.items() for share in turn_shares(step, tokens)),
        logprobs=tuple(logprob_change(step, weighed[step].tokens, change) for step, change in later.items()),
    )


def _squared_norm(gram: StepGram) -> float:
    matrix = gram.policy_gram
    return 0.0 if matrix is None else batch_norm(matrix) ** 2


def _prepared(run: Run, measured: MeasuredStep, options: EngineOptions) -> PreparedStep:
    from gradscope.diagnostics.inputs.recomputed import prepared_of, under

    assert measured.gram is not None, "the caller chooses a step that was recomputed"
    assert measured.weights is not None, "whose weights are therefore on disk"
    assert measured.loss is not None, "and whose loss is known"
    prepared = prepared_of(run, measured.step, measured.weights, measured.loss, options, measured.gram.batch_tokens)
    return prepared if measured.gram.assumption is None else under(prepared, measured.gram.assumption)


def key_numbers(inputs: ReportInputs) -> tuple[KeyNumber, ...]:
    """The five numbers in the order of the page; one that cannot be computed is undefined, with the reason."""
    return (_dead(inputs), _rank(inputs), _norm(inputs), _mismatch(inputs), _pass_at_k(inputs))


def _unknown(reason: str) -> Estimate:
    return Estimate.undefined_because(reason.rstrip("."))


def _dead(inputs: ReportInputs) -> KeyNumber:
    report, number = inputs.degeneracy, partial(KeyNumber, name="signal", style="share")
    if isinstance(report, Unavailable):
        return number(title="groups without a gradient", value=_unknown(report.reason))
    if report.is_in_conflict:
        dead = report.frac_reward_zero_std.value or 0.0
        return number(
            title="groups that a side reward decides",
            value=report.frac_reward_conflict,
            note=f"of {report.num_groups:,} groups; {100 * dead:.1f} % have equal rewards",
        )
    late = share_at_end(report)
    title = "groups of equal rewards" if report.has_other_baseline else "groups without a gradient"
    return number(
        title=title if late is None else f"{title} → at the end",
        value=report.frac_reward_zero_std,
        then=late,
        note=f"of {report.num_groups:,} groups{'' if late is None else f'; at {last_fifth(report)}'}",
        places=tuple(report.course.step),
        course=tuple(report.course.frac_reward_zero_std),
    )


def _rank(inputs: ReportInputs) -> KeyNumber:
    number = partial(KeyNumber, name="rank", title="directions of a group's gradient", style="rank")
    points = [point for point in inputs.curve if point.effective_rank.is_defined]
    if not points:
        reason = "no recomputed group has a gradient" if inputs.grams else "no gradient was recomputed"
        return number(value=_unknown(reason))
    last = points[-1]
    drawn = [point for point in points if point.group_size == last.group_size]
    return number(
        value=last.effective_rank,
        note=f"of at most {last.group_size}, step {last.step}",
        places=tuple(point.step for point in drawn),
        course=tuple(point.effective_rank.value for point in drawn),
    )


def _norm(inputs: ReportInputs) -> KeyNumber:
    report = inputs.replay
    number = partial(KeyNumber, name="replay", title="gradient norm, error of the replay", style="norm")
    if isinstance(report, Unavailable):
        return number(value=_unknown(report.reason))
    errors = [step.relative_error["grad_norm"] for step in report.steps if "grad_norm" in step.relative_error]
    finite = [error for error in errors if math.isfinite(error)]
    matched = sum(step.verdict_on("grad_norm") == "match" for step in report.steps)
    logged = {step.step: step.logged.get("grad_norm") for step in report.steps}
    if all(norm is None for norm in logged.values()):
        logged = {}
    return number(
        value=Estimate.exact(max(finite), num_units=len(finite)) if finite else _unknown("no gradient was compared"),
        note=f"{matched} of {len(errors)} norms match; line: as logged" if errors else "",
        places=tuple(logged),
        course=tuple(logged.values()),
    )


def _mismatch(inputs: ReportInputs) -> KeyNumber:
    sampler = inputs.logged.sampler
    number = partial(KeyNumber, name="agreement", title="sampler against trainer", style="norm")
    if sampler.overall is None:
        return number(value=_unknown("the log does not hold the log-probabilities of both"))
    return number(
        value=sampler.overall.logprob_gap,
        note="mean |difference of log p| of a token",
        places=tuple(row.step or 0 for row in sampler.by_step),
        course=tuple(row.logprob_gap.value for row in sampler.by_step),
    )


def _pass_at_k(inputs: ReportInputs) -> KeyNumber:
    """Of held-out samples where there are any, the last file; else of the groups themselves, k their size."""
    number = partial(KeyNumber, name="coverage", title="pass@1 → pass@k", style="share")
    table = None if isinstance(inputs.passk, Unavailable) else inputs.passk.tables[-1]
    if table is not None and (rows := [row for row in table.rows if row.pass_at_k.is_defined]):
        if len(rows) == 1:
            return number(title=f"pass@{rows[0].k}", value=rows[0].pass_at_k, note=table.name)
        note = f"k = {rows[0].k} and {rows[-1].k}, {table.name}"
        return number(value=rows[0].pass_at_k, then=rows[-1].pass_at_k, note=note)
    if isinstance(inputs.degeneracy, Unavailable) or inputs.degeneracy.success_threshold is None:
        reason = inputs.passk.reason if isinstance(inputs.passk, Unavailable) else "no k has as many samples"
        return number(value=_unknown(reason))
    # each group is of one prompt at one step, and steps are other policies: this is no pass@k, which has one
    report = inputs.degeneracy
    return KeyNumber(
        name="signal",
        title="pass rate → groups with a pass",
        value=report.pass_rate,
        then=report.frac_all_fail.map(lambda share: 1 - share),
        style="share",
        note=f"of {report.num_groups:,} training groups of {report.group_size or 'unequal size'}",
        places=tuple(report.course.step),
        course=tuple(report.course.pass_rate),
    )

"""The five numbers that a run is known by: dead groups, rank, norm replayed, mismatch, and pass@1 beside pass@k.

They are those of the sections, so each names the section that has the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gradscope.diagnostics.report.sections import agreement, coverage, directions, replayed, signal
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable
from gradscope.estimate import Estimate
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.report import KeyNumber, NumberStyle


def key_numbers(inputs: ReportInputs) -> tuple[KeyNumber, ...]:
    """The five numbers in the order of the page; one that cannot be had is undefined, with the reason."""
    return (_dead(inputs), _rank(inputs), _norm(inputs), _mismatch(inputs), _pass_at_k(inputs))


def _unknown(name: str, title: str, reason: str, style: NumberStyle) -> KeyNumber:
    """A number that the log does not tell."""
    value = Estimate.undefined_because(reason.rstrip("."))
    return KeyNumber(name=name, title=title, value=value, style=style)


def _dead(inputs: ReportInputs) -> KeyNumber:
    report, title = inputs.degeneracy, "groups without a gradient"
    if isinstance(report, Unavailable):
        return _unknown(signal.NAME, title, report.reason, "share")
    if report.is_in_conflict:
        dead = report.frac_reward_zero_std.value or 0.0
        return KeyNumber(
            name=signal.NAME,
            title="groups that a side reward decides",
            value=report.frac_reward_conflict,
            style="share",
            note=f"of {report.num_groups:,} groups; {100 * dead:.1f} % have equal rewards",
        )
    return KeyNumber(
        name=signal.NAME,
        title=title,
        value=report.frac_reward_zero_std,
        style="share",
        note=f"of {report.num_groups:,} groups",
        places=tuple(row.step for row in report.by_step),
        course=tuple(row.frac_reward_zero_std.value for row in report.by_step),
    )


def _rank(inputs: ReportInputs) -> KeyNumber:
    title = "directions of a group's gradient"
    points = [point for point in inputs.curve if point.effective_rank.is_defined]
    if not points:
        reason = "no recomputed group has a gradient" if inputs.grams else "no gradient was recomputed"
        return _unknown(directions.NAME, title, reason, "rank")
    last = points[-1]
    course = [point for point in points if point.group_size == last.group_size]
    return KeyNumber(
        name=directions.NAME,
        title=title,
        value=last.effective_rank,
        style="rank",
        note=f"of at most {last.group_size}, step {last.step}",
        places=tuple(point.step for point in course),
        course=tuple(point.effective_rank.value for point in course),
    )


def _norm(inputs: ReportInputs) -> KeyNumber:
    report, title = inputs.replay, "gradient norm, error of the replay"
    if isinstance(report, Unavailable):
        return _unknown(replayed.NAME, title, report.reason, "norm")
    errors = [step.relative_error["grad_norm"] for step in report.steps if "grad_norm" in step.relative_error]
    known = [error for error in errors if math.isfinite(error)]
    matched = sum(error <= report.tolerance for error in known)
    logged = {step.step: step.logged.get("grad_norm") for step in report.steps}
    if all(norm is None for norm in logged.values()):
        logged = {}
    number = _unknown(replayed.NAME, title, "no norm was recomputed", "norm")
    return replace(
        number,
        value=Estimate.exact(max(known), num_units=len(known)) if known else number.value,
        note=f"{matched} of {len(errors)} norms match; course: as logged" if errors else "",
        places=tuple(logged),
        course=tuple(logged.values()),
    )


def _mismatch(inputs: ReportInputs) -> KeyNumber:
    found, title = inputs.logged.sampler, "sampler against trainer"
    if found.overall is None:
        reason = "the log does not hold the log-probabilities of both"
        return _unknown(agreement.NAME, title, reason, "norm")
    return KeyNumber(
        name=agreement.NAME,
        title=title,
        value=found.overall.logprob_gap,
        style="norm",
        note="mean |difference of log p| of a token",
        places=tuple(row.step or 0 for row in found.by_step),
        course=tuple(row.logprob_gap.value for row in found.by_step),
    )


def _pass_at_k(inputs: ReportInputs) -> KeyNumber:
    """Of held-out samples where there are any, the last file; else of the groups themselves, k their size."""
    title = "pass@1 → pass@k"
    if not isinstance(inputs.passk, Unavailable) and (held_out := _of_samples(inputs.passk, title)) is not None:
        return held_out
    if isinstance(inputs.degeneracy, Unavailable) or inputs.degeneracy.success_threshold is None:
        reason = inputs.passk.reason if isinstance(inputs.passk, Unavailable) else "no k has as many samples"
        return _unknown(coverage.NAME, title, reason, "share")
    return _of_groups(inputs.degeneracy)


def _of_samples(report: PassAtKReport, title: str) -> KeyNumber | None:
    table = report.tables[-1]
    rows = [row for row in table.rows if row.pass_at_k.is_defined]
    if not rows:
        return None
    first, last = rows[0], rows[-1]
    return KeyNumber(
        name=coverage.NAME,
        title=title,
        value=first.pass_at_k,
        then=last.pass_at_k,
        style="share",
        note=f"k = {first.k} and {last.k}, {table.name}",
    )


def _of_groups(report: DegeneracyReport) -> KeyNumber:
    """Each group is of one prompt at one step, and steps are other policies: this is no pass@k, which has one."""
    size = f"{report.group_size}" if report.group_size else "unequal size"
    return KeyNumber(
        name=signal.NAME,
        title="pass rate → groups with a pass",
        value=report.pass_rate,
        then=report.frac_all_fail.map(lambda share: 1 - share),
        style="share",
        note=f"of {report.num_groups:,} training groups of {size}",
        places=tuple(row.step for row in report.by_step),
        course=tuple(row.pass_rate.value for row in report.by_step),
    )

"""What a degeneracy report says in words: number, what it means, what to try."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradscope.findings.degeneracy_signal import (
    conflict_advice,
    conflict_findings,
    cost_finding,
    dispersion_finding,
    policy_finding,
    remedy_finding,
    reward_findings,
    target_finding,
)
from gradscope.results.degeneracy import DegeneracyReport, GroupSizeDegeneracy
from gradscope.say import number, percent, points, with_interval

_SAME = 1e-6
"""Shares closer than this are the same: trainers log float32."""
_RESAMPLED = (
    "Dead groups were replaced before they reached this log: these are shares of the batches that were trained on, and "
    "the policy's own share of dead groups is no smaller."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedGroups:
    """What the sentences tell of a log and its report does not hold."""

    num_levels: int
    """Different rewards in all groups."""
    reward_functions: tuple[str, ...]
    """Names of the reward functions that were logged one by one."""
    num_singletons: int
    """Groups left out because they have a single rollout."""
    num_incomplete: int
    """Groups left out because a reward is missing."""
    resampled: bool
    """Whether dead groups were replaced before they reached the log."""


def degeneracy_findings(
    report: DegeneracyReport, log: LoggedGroups, doubled: GroupSizeDegeneracy | None
) -> tuple[str, ...]:
    """The sentences of a report.

    Args:
        report: The report, without its findings.
        log: The groups it was made from.
        doubled: The forecast at twice the group size, where there is one.

    Returns:
        Sentences for people, the verdict first: the share and its kinds. Then the target, what does not fit, what it
        costs, what to try, the gap and its parts, each reward function, and what agrees.
    """
    different, agreement = _disagreement(report)
    conflict = conflict_findings(report.reward_conflict)
    is_undefined = report.iid_prediction.value is None
    leads = conflict and report.is_in_conflict
    sentences = [
        *(conflict if leads else ()),
        _share(report),
        *(() if leads else conflict),
        target_finding(report),
        *_filtered(report, log),
        different,
        _left_out(log),
        _levels(report, log),
        cost_finding(report),
        "" if log.resampled else _advice(report, log),
        "" if log.resampled else remedy_finding(report, doubled),
        *(() if is_undefined else (_gap(report),)),
        policy_finding(report),
        dispersion_finding(report),
        *reward_findings(report),
        *((_gap(report),) if is_undefined else ()),
        agreement,
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _share(report: DegeneracyReport) -> str:
    share = report.frac_reward_zero_std
    num_dead = round((share.value or 0.0) * report.num_groups)
    is_part = report.reward_conflict is not None and report.reward == report.reward_conflict.main
    whose = f"rewards of '{report.reward}'" if is_part else "rewards"
    text = f"{num_dead:,} of {report.num_groups:,} groups ({with_interval(share, percent)}) have equal {whose}"
    kinds = []
    for name, kind in (
        ("all pass", report.frac_all_pass),
        ("all fail", report.frac_all_fail),
        ("tied", report.frac_tied),
    ):
        if kind.value:
            kinds.append(f"{round(kind.value * report.num_groups):,} {name}")
    if not num_dead:
        return f"{text}." if report.reward_conflict else f"{text}: each of them gives a group-mean baseline a gradient."
    lost = "of which it alone makes no gradient" if is_part else "and give a group-mean baseline no gradient"
    return f"{text}{',' * is_part} {lost}: {', '.join(kinds)}."


def _filtered(report: DegeneracyReport, log: LoggedGroups) -> tuple[str, ...]:
    """What a filter has hidden, or may have."""
    counted = _behind_filter(report)
    if log.resampled:
        return _RESAMPLED, counted
    if counted:
        return (counted,)
    return () if report.frac_reward_zero_std.value else report.source.filters  # a filter leaves no dead group


def _behind_filter(report: DegeneracyReport) -> str:
    found = report.behind_filter
    share, kept = found.frac_zero_std_sampled, report.frac_reward_zero_std
    if share.value is None or kept.value is None:
        return ""
    known = sum(row.num_sampled is not None for row in found.by_step)
    where = "" if known == len(found.by_step) else f", at the {known} of {len(found.by_step)} steps that tell"
    return (
        f"Behind the filter: of {found.num_sampled:,} groups that were sampled {found.num_dead:,} "
        f"({with_interval(share, percent)}) gave no gradient, by the log's count of dropped groups{where}; "
        f"the {percent(kept.value)} above is of those that were kept."
    )


def _gap(report: DegeneracyReport) -> str:
    predicted, gap = report.iid_prediction, report.jensen_gap
    parts = report.gap_decomposition
    if predicted.value is None or gap.value is None or report.pass_rate.value is None:
        main = report.prompts.reward
        more = "" if main == report.reward else f"; of '{main}' --reward {main} has them"
        return f"Pass rate and prediction are undefined: {predicted.undefined}{more}."
    text = (
        f"Independent rollouts with one pass rate ({report.pass_rate_origin}) would make {percent(predicted.value)} "
        f"of groups degenerate; the gap is {with_interval(gap, points)} points"
    )
    if report.relative_gap.is_defined and gap.value >= 0:
        text += f", {with_interval(report.relative_gap, _times)} times the prediction"
    if not (parts.between_prompts.is_defined and parts.over_time.is_defined) or len(report.by_step) < 2:
        return f"{text}."
    return (
        f"{text}: {with_interval(parts.between_prompts, points)} from groups that differ within a step and "
        f"{with_interval(parts.over_time, points)} from a pass rate that moves between steps."
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if abs(ratio) >= 10 else f"{ratio:.2g}"


def _levels(report: DegeneracyReport, log: LoggedGroups) -> str:
    if report.success_threshold is None or log.num_levels <= 2:
        return ""
    return (
        f"The rewards have {log.num_levels} levels: a group can all pass and still have unequal rewards, so the gap "
        "compares a share of equal rewards with a prediction about passes."
    )


def _advice(report: DegeneracyReport, log: LoggedGroups) -> str:
    if not report.frac_reward_zero_std.value:
        return ""
    text = dead_group_advice(report)
    names = log.reward_functions
    if _kinds_are_known(report) or len(names) < 2:
        return text
    return f"{text.rstrip('.')}, or look at one reward function alone ({', '.join(names)})."


def dead_group_advice(report: DegeneracyReport) -> str:
    """What to try, by the kind of most dead groups."""
    all_pass, all_fail = report.frac_all_pass.value or 0.0, report.frac_all_fail.value or 0.0
    dead = report.frac_reward_zero_std.value
    if report.reward_conflict and (report.is_in_conflict or not dead):
        return conflict_advice(report.reward_conflict)
    if not dead:
        return "Nothing to do: none of these groups was without a gradient."
    if not _kinds_are_known(report):
        return "To see whether they are too easy or too hard, say what counts as a pass (--success-threshold)."
    if all_pass + all_fail < dead / 2:
        return "Most of them are tied between pass and fail: try a reward with finer steps, or look at what ties them."
    if all_fail > 2 * all_pass:
        return "Most of them fail throughout: try easier prompts, partial credit, or more rollouts a group."
    if all_pass > 2 * all_fail:
        return "Most of them pass throughout: try harder prompts, or drop solved ones."
    return "Some are too hard and some too easy: try choosing prompts by their pass rate, or resampling dead groups."


def _kinds_are_known(report: DegeneracyReport) -> bool:
    return report.frac_all_pass.value is not None and report.frac_all_fail.value is not None


def _disagreement(report: DegeneracyReport) -> tuple[str, str]:
    """Where the trainer's own share is another one, and else that it is the same: a problem, or the last thing said."""
    compared = [
        (row.step, row.logged, row.frac_reward_zero_std.value)
        for row in report.by_step
        if row.logged is not None and row.frac_reward_zero_std.value is not None
    ]
    different = [(step, logged, own) for step, logged, own in compared if not abs(logged - own) <= _SAME]  # NaN differs
    if not compared:
        return "", ""
    if not different:
        return "", f"The trainer's own frac_reward_zero_std is the same at each of the {len(compared)} steps compared."
    step, logged, own = different[0]
    text = (
        f"At {len(different)} of {len(compared)} steps the trainer logged another frac_reward_zero_std, first at step "
        f"{step}: {number(logged, '.4f')}, here {own:.4f}. {_why_different(own - logged)}"
    )
    return text, ""


def _why_different(more_here: float) -> str:
    if not math.isfinite(more_here):
        return "No batch of rollouts has such a share: the trainer's own number is broken."
    if more_here > 0:
        return (
            "Here a group is dead when its rewards lie within 1e-8. A trainer that tests the standard deviation in "
            "float32 misses groups of equal fractional rewards, whose std is not exactly zero."
        )
    return "The log may lack rows of the groups that differed, or the trainer's scalar may be another sum of rewards."


def _left_out(log: LoggedGroups) -> str:
    parts = []
    if log.num_singletons:
        parts.append(f"{log.num_singletons:,} with a single rollout")
    if log.num_incomplete:
        parts.append(f"{log.num_incomplete:,} with a missing reward")
    return f"Groups left out: {' and '.join(parts)}." if parts else ""

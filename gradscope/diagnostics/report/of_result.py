"""The sections of the page about a single result, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.report.sections.agreement import claims_answer, replay_answer
from gradscope.diagnostics.report.sections.gradient import directions_answer
from gradscope.diagnostics.report.sections.signal import coverage_answer, signal_answer
from gradscope.results.compare import Comparison
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.norms import ReplayReport, SpikeReport
from gradscope.results.passk import PassAtKReport
from gradscope.results.rank import RankReport
from gradscope.results.report import ReportSection, RunIndex, RunReport, Severity
from gradscope.results.verdicts import CheckReport, ClaimsReport

_OUTCOMES: dict[str, Severity] = {"pass": "fine", "fail": "problem", "unknown": "unknown"}


def sections_of(result: object) -> tuple[ReportSection, ...]:
    """The sections of the page about a result; where there are none, one with the result's own findings."""
    for kind, make in _SECTIONS.items():
        if isinstance(result, kind):
            return make(result)
    raise TypeError(f"no command finds a {type(result).__name__}")


def _check(report: CheckReport) -> tuple[ReportSection, ...]:
    held = sum(verdict.outcome == "pass" for verdict in report.verdicts)
    counted = f"{held} of {len(report.verdicts)} requirements hold." if report.verdicts else "The baseline is written."
    sentences = (
        f"{verdict.metric} {verdict.op} {verdict.limit:g}: {verdict.meaning} {verdict.next_step}".rstrip()
        for verdict in report.verdicts
        if verdict.outcome != "pass"
    )
    findings = (f"Check: {report.outcome}. {counted}", *report.findings, *sentences)
    return _findings_section("check", "Does the run meet its requirements?", findings, _OUTCOMES[report.outcome])


def _findings_section(
    name: str, question: str, findings: tuple[str, ...], severity: Severity = "fine"
) -> tuple[ReportSection, ...]:
    return (ReportSection(name=name, question=question, findings=findings, severity=severity),)


def _rank(report: RankReport) -> tuple[ReportSection, ...]:
    """The ranks of the logged groups by step; the findings alone for other rows or without logged advantages."""
    logged = [point for point in report.curve if point.advantage == LOGGED and point.effective_rank.is_defined]
    largest: dict[int, int] = {}
    for point in logged:
        largest[point.step] = max(point.group_size, largest.get(point.step, 0))
    if report.rows == "rollout" and logged:
        return (directions_answer([point for point in logged if point.group_size == largest[point.step]]),)
    return _findings_section("rank", "How many directions does the gradient have?", report.findings)


_SECTIONS: dict[type, Callable[[Any], tuple[ReportSection, ...]]] = {
    CheckReport: _check,
    ClaimsReport: lambda report: (claims_answer(report),),
    Comparison: lambda report: _findings_section("compare", "Did changing one thing matter?", report.findings),
    DegeneracyReport: lambda report: (signal_answer(report),),
    PassAtKReport: lambda report: (coverage_answer(report),),
    RankReport: _rank,
    ReplayReport: lambda report: (replay_answer(report),),
    RunIndex: lambda index: (
        index.sections or _findings_section("runs", "What differs between the runs?", index.findings)
    ),
    RunReport: lambda report: report.by_severity,
    SpikeReport: lambda report: _findings_section(
        "spike",
        f"What happened at step {report.step}?",
        report.findings,
        "look" if any(metric.is_unusual for metric in report.metrics) else "fine",
    ),
}

"""Does the log replay, and if not: weights, tokens or formula?"""

from __future__ import annotations

import re

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.results.replay import ReplayReport
from gradscope.results.report import Chart, Column, ReportSection, ReportTable, Series

NAME = "replay"
QUESTION = "Does the log reproduce the trainer's own numbers?"

_ADVICE = {
    "match": "Nothing to do: weights, tokens and loss of the recomputed steps are the trainer's own, so the gradient "
    "sections below stand on them.",
    "mismatch": "Read the cause of the first step that differs: exact token ids (--completion-ids), the trainer's "
    "arguments (--run-config) or the weights before the first update (--initial) are what usually lacks.",
    "cannot": "Save a checkpoint before the steps that matter, log exact token ids, and pass the weights before the "
    "first update with --initial and the trainer's arguments with --run-config.",
}


def replay_section(inputs: ReportInputs) -> ReportSection:
    """The replay of every step: verdicts with their causes."""
    report = inputs.replay
    if isinstance(report, Unavailable):
        return missing_section(NAME, QUESTION, report)
    entry = metric("replay_grad_norm_error")
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(*report.findings, f"The verdict on the run: {report.verdict}."),
        meaning=entry.meaning,
        next_step=_ADVICE[report.verdict],
        command=inputs.command("replay"),
        charts=_charts(report),
        tables=(_steps(report), *_causes(report)),
    )


def _charts(report: ReplayReport) -> tuple[Chart, ...]:
    logged = tuple(step.logged.get("grad_norm") for step in report.steps)
    if len(report.steps) < 2 or not any(value is not None for value in logged):
        return ()
    return (
        Chart(
            title="Gradient norm, logged and recomputed",
            kind="lines",
            places=tuple(step.step for step in report.steps),
            series=(
                Series(name="logged", values=logged),
                Series(name="recomputed", values=tuple(step.recomputed.get("grad_norm") for step in report.steps)),
            ),
        ),
    )


def _steps(report: ReplayReport) -> ReportTable:
    names = ("reward", "advantage", "frac_reward_zero_std", "grad_norm")
    rows = []
    for step in report.steps:
        verdicts = {quantity.name: quantity.verdict for quantity in step.quantities}
        rows.append(
            (
                step.step,
                *(verdicts.get(name) for name in names),
                step.logged.get("grad_norm"),
                step.recomputed.get("grad_norm"),
                step.relative_error.get("grad_norm"),
            )
        )
    return ReportTable(
        caption=f"Verdicts by step; grad_norm matches within a relative error of {report.tolerance:g}",
        columns=(
            Column(title="step", style="count"),
            *(Column(title=name) for name in names),
            *(Column(title=name, style="norm") for name in ("logged grad_norm", "recomputed", "error")),
        ),
        rows=tuple(rows),
    )


def _causes(report: ReplayReport) -> tuple[ReportTable, ...]:
    """Each cause once: those that differ in their numbers only share a row, worded as at the first of its steps."""
    rows: dict[tuple[str, str, str], tuple[str, list[int]]] = {}
    for step in report.steps:
        for quantity in step.quantities:
            if quantity.cause:
                alike = (quantity.name, quantity.verdict, re.sub(r"\d[\d.e+%-]*", "0", quantity.cause))
                rows.setdefault(alike, (quantity.cause, []))[1].append(step.step)
    if not rows:
        return ()
    columns = (Column(title="first step", style="count"), Column(title="steps", style="count"))
    return (
        ReportTable(
            caption="Causes and remarks, as they are worded at the first of their steps",
            columns=(*columns, *(Column(title=title) for title in ("quantity", "verdict", "cause"))),
            rows=tuple(
                (steps[0], len(steps), name, verdict, cause) for (name, verdict, _), (cause, steps) in rows.items()
            ),
        ),
    )

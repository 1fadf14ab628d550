"""Does the log replay, and if not: weights, tokens or formula?"""

from __future__ import annotations

import re
from collections.abc import Callable

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.render.views.view import Column, entry, lines_over, tabulate
from gradscope.results.norms import ReplayReport, StepReplay
from gradscope.results.report import Chart, ReportColumn, ReportSection, ReportTable, SeriesKind, Severity

NAME = "replay"
QUESTION = "Does the log reproduce the trainer's own numbers?"

_SEVERITIES: dict[str, Severity] = {"mismatch": "problem", "match": "fine", "cannot": "unknown"}
_REMEDIES = {
    "inferred from": "log exact token ids, or give them with --completion-ids",
    "--run-config": "give the trainer's arguments with --run-config",
    "--initial": "give the weights before the first update with --initial",
    "not on disk": "save a checkpoint before each step that matters",
    "the trainer logged no": "log each step (logging_steps=1 in TRL)",
    "with exact ids": "check that --run-config holds this run's arguments, and that no checkpoint was replaced",
    "the log says": "look for rows that were changed, or lost, after the trainer logged the step",
    "an advantage differs": "check the formulation in the trainer's arguments",
}
"""Words of a cause -> what to do about it."""


def replay_section(inputs: ReportInputs) -> ReportSection:
    """The replay of every step: verdicts with their causes."""
    report = inputs.replay
    if isinstance(report, Unavailable):
        return missing_section(NAME, QUESTION, report)
    return replay_answer(report, inputs.command("replay"))


def replay_answer(report: ReplayReport, command: str = "") -> ReportSection:
    """The same of steps that were replayed already; ``command`` looks closer."""
    entry = metric("replay_grad_norm_error")
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(f"Replay: {report.headline}.", *report.findings),
        severity=_SEVERITIES[report.verdict],
        meaning=entry.meaning,
        next_step=_next_step(report),
        command="" if report.verdict == "cannot" else command,
        charts=_charts(report),
        tables=(_steps(report), *_causes(report)),
    )


def _next_step(report: ReplayReport) -> str:
    """What the causes of this run's verdict ask for, those of mismatches first."""
    if report.verdict == "match" and all(step.verdict != "cannot" for step in report.steps):
        return "Nothing to do: weights, tokens and loss are the trainer's own, so the gradient sections stand on them."
    wanted = "mismatch" if report.verdict == "mismatch" else "cannot"
    causes = [one.cause for step in report.steps for one in step.quantities if one.verdict == wanted and one.cause]
    remedies = [remedy for words, remedy in _REMEDIES.items() if any(words in cause for cause in causes)]
    advice = f"{'; '.join(remedies)}." if remedies else "Read the cause of the first such step below."
    return f"{advice[:1].upper()}{advice[1:]}"


def _charts(report: ReplayReport) -> tuple[Chart, ...]:
    norms = {name: [getattr(step, name).get("grad_norm") for step in report.steps] for name in ("logged", "recomputed")}
    if all(value is None for value in norms["logged"]):
        return ()
    steps = [step.step for step in report.steps]
    kinds: dict[str, SeriesKind] = {"logged": "logged", "recomputed": "recomputed"}
    return lines_over(steps, "Gradient norm", norms, y_label="grad_norm", kinds=kinds)


def _steps(report: ReplayReport) -> ReportTable:
    def verdict(name: str) -> Callable[[StepReplay], str | None]:
        return lambda step: next((one.verdict for one in step.quantities if one.name == name), None)

    names = ("reward", "advantage", "frac_reward_zero_std", "grad_norm")
    return tabulate(
        f"Verdicts by step; grad_norm matches within a relative error of {report.tolerance:g}",
        (
            Column("step", "step", "count"),
            *(Column(name, verdict(name)) for name in names),
            Column("logged grad_norm", entry("logged", "grad_norm"), "norm"),
            Column("recomputed", entry("recomputed", "grad_norm"), "norm"),
            Column("error", entry("relative_error", "grad_norm"), "norm"),
        ),
        report.steps,
        by_step=True,
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
    columns = (ReportColumn(title="first step", style="count"), ReportColumn(title="steps", style="count"))
    return (
        ReportTable(
            caption="Causes and remarks, as they are worded at the first of their steps",
            columns=(*columns, *(ReportColumn(title=title) for title in ("quantity", "verdict", "cause"))),
            rows=tuple(
                (steps[0], len(steps), name, verdict, cause) for (name, verdict, _), (cause, steps) in rows.items()
            ),
        ),
    )

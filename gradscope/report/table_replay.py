"""Replay as a table: what the trainer logged beside what the rollouts and weights give."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.report.layout import add_row, document, heading, new_table, source_line
from gradscope.report.numbers import Footnotes, format_number
from gradscope.results.replay import ReplayReport, StepReplay

STYLES = {"match": "green", "pass": "green", "mismatch": "bold red", "fail": "bold red"}
"""The colors of verdicts; the word says the same without color."""


def replay_table(report: ReplayReport) -> Group:
    """The report for a terminal.

    Args:
        report: The measurement.

    Returns:
        One row per step and quantity, then what it means.
    """
    notes = Footnotes()
    head = heading(
        f"Replay: {report.verdict}",
        source_line(report.source),
        f"grad_norm matches within a relative error of {report.tolerance:g}",
    )
    return document(head, [_steps(report, notes)], notes, report.findings)


def _steps(report: ReplayReport, notes: Footnotes) -> Table:
    table = new_table(
        [
            ("step", "right"),
            ("quantity", "left"),
            ("verdict", "left"),
            ("logged", "right"),
            ("recomputed", "right"),
            ("error", "right"),
        ]
    )
    for step in report.steps:
        for place, quantity in enumerate(step.quantities):
            verdict = quantity.verdict + (_note(quantity.cause, notes) if quantity.cause else "")
            add_row(
                table,
                str(step.step) if place == 0 else "",
                quantity.name,
                Text(verdict, style=STYLES.get(quantity.verdict, "yellow")),
                *_figures(step, quantity.name),
            )
    return table


def _note(cause: str, notes: Footnotes) -> str:
    return " " + notes.mark(cause).lstrip("—")


def _figures(step: StepReplay, name: str) -> tuple[str, str, str]:
    """Logged, recomputed and error; blank where the verdict's footnote says why there is none."""
    logged, recomputed, error = (
        mapping.get(name) for mapping in (step.logged, step.recomputed, step.relative_error)
    )
    return (
        "" if logged is None else f"{logged:.7g}",
        "" if recomputed is None else f"{recomputed:.7g}",
        "" if error is None else format_number(error, "norm"),
    )

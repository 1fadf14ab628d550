"""Replay as a table: what the trainer logged beside what the rollouts and weights give."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.layout import Column, add_row, document, formulas, heading, new_table, source_line
from gradscope.render.words.numbers import Footnotes, format_number
from gradscope.results.replay import Quantity, ReplayReport, StepReplay
from gradscope.say import number

STYLES = {"match": "green", "pass": "green", "mismatch": "bold red", "fail": "bold red"}
"""The colors of verdicts; the word says the same without color."""

_NORM = "grad_norm"
_COLUMNS: tuple[Column, ...] = (
    ("step", "right"),
    ("grad_norm", "left"),
    ("logged", "right"),
    ("recomputed", "right"),
    ("error", "right"),
    ("reward", "left"),
    ("advantage", "left"),
    ("zero std", "left"),
)
_CHEAP = ("reward", "advantage", "frac_reward_zero_std")


def replay_table(report: ReplayReport) -> Group:
    """A row a step, the causes as footnotes, then what it means."""
    notes = Footnotes()
    head = heading(
        f"Replay: {report.headline}",
        source_line(report.source),
        f"grad_norm matches within a relative error of {report.tolerance:g}",
    )
    blocks: list[RenderableType] = [_steps(report, notes), formulas(_NORM)]
    return document(head, blocks, notes, report.findings)


def _steps(report: ReplayReport, notes: Footnotes) -> Table:
    table = new_table(_COLUMNS)
    causes = _Causes(report, notes)
    for step in report.steps:
        verdicts = {quantity.name: quantity for quantity in step.quantities}
        add_row(
            table,
            str(step.step),
            causes.verdict(verdicts.get(_NORM)),
            *_figures(step),
            *(causes.verdict(verdicts.get(name)) for name in _CHEAP),
        )
    return table


class _Causes:
    """Verdicts whose causes are footnotes; causes that differ in their numbers only share one."""

    def __init__(self, report: ReplayReport, notes: Footnotes) -> None:
        self._notes = notes
        self._first: dict[str, str] = {}
        causes = [q.cause for step in report.steps for q in step.quantities if q.cause]
        self._shapes = [_shape(cause) for cause in causes]

    def verdict(self, quantity: Quantity | None) -> Text:
        if quantity is None:
            return Text("")
        style = STYLES.get(quantity.verdict, "yellow")
        if quantity.cause is None:
            return Text(quantity.verdict, style=style)
        shape = _shape(quantity.cause)
        likewise = self._shapes.count(shape) - 1
        more = f" (likewise {likewise} more)" if likewise else ""
        advice = f". {quantity.advice}" if quantity.advice else ""
        reason = self._first.setdefault(shape, f"{quantity.cause}{more}{advice}")
        return Text(f"{quantity.verdict}{self._notes.mark(reason).lstrip('—')}", style=style)


def _shape(cause: str) -> str:
    return re.sub(r"\d[\d.e+%-]*", "0", cause).replace("0 updates", "0 update")


def _figures(step: StepReplay) -> tuple[str, str, str]:
    """Logged, recomputed and error; blank where the verdict's footnote says why there is none."""
    logged, recomputed = step.logged.get(_NORM), step.recomputed.get(_NORM)
    error = step.relative_error.get(_NORM)
    return (
        "" if logged is None else number(logged, ".6g"),
        "" if recomputed is None else f"{recomputed:.6g}",
        "" if error is None else format_number(error, "norm"),
    )

"""Replay: the verdict, what the trainer logged beside what the rollouts and weights give, and the causes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import MOST_ROWS, Blocks, answer, evenly
from gradscope.render.terminal.layout import Column, add_row, new_table, source_line
from gradscope.render.terminal.names import ALL
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes, format_number
from gradscope.render.words.tones import STYLES, Tone
from gradscope.results.replay import Quantity, ReplayReport, StepReplay
from gradscope.say import as_ranges, number

_TONES: Mapping[str, Tone] = {"match": "fine", "mismatch": "problem", "cannot": "unknown", "no_gradient": "unknown"}
_NORM = "grad_norm"
_COLUMNS: tuple[Column, ...] = (
    ("step", "right"),
    ("grad_norm", "left"),
    ("logged", "right"),
    ("recomputed", "right"),
    ("relative\nerror", "right"),
    ("reward", "left"),
    ("advantage", "left"),
    ("zero std", "left"),
)
_MOST_CAUSES = 2
"""Of the steps that are not shown."""
_CHEAP = ("reward", "advantage", "frac_reward_zero_std")


def replay_table(report: ReplayReport, show: Sequence[str] = ()) -> Group:
    """The verdict, the steps that mismatch and those that match, one line of counts.

    Args:
        report: What was replayed.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints.
    """
    return answer(
        "replay",
        (f"Replay: {report.headline}. {report.findings[0]}", *report.findings[1:]),
        _answer(report, whole="steps" in show or ALL in show),
        facts=[source_line(report.source)],
        findings=report.findings[1:],
        views={"causes": lambda notes: _causes(report.steps)},
        show=show,
        tone=_TONES[report.verdict],
    )


def _answer(report: ReplayReport, *, whole: bool) -> Blocks:
    """Steps that were judged, mismatches first where there are many; the rest as counts."""
    wrong = [step for step in report.steps if step.verdict == "mismatch"]
    judged = [step for step in report.steps if step.verdict == "mismatch" or _NORM in step.recomputed]
    shown = list(judged)
    if whole:
        shown = list(report.steps)
    elif len(judged) > MOST_ROWS:
        shown = sorted(evenly(wrong or judged), key=lambda step: step.step)
    notes = Footnotes()
    if shown:
        yield _steps(shown, notes)
        yield cell(f"grad_norm matches up to a relative error of {report.tolerance:g}")
    yield from map(cell, notes.lines())
    seen = {step.step for step in shown}
    left = [step for step in report.steps if step.step not in seen]
    if shown and left:
        counts = Counter(step.verdict for step in left)
        numbers = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
        yield cell(f"Not shown: {numbers} (--show steps).")
    yield from _causes(left, most=_MOST_CAUSES)


def _steps(steps: Sequence[StepReplay], notes: Footnotes) -> Table:
    table = new_table(_COLUMNS)
    causes = _Causes(steps, notes)
    for step in steps:
        verdicts = {quantity.name: quantity for quantity in step.quantities}
        add_row(
            table,
            str(step.step),
            causes.verdict(verdicts.get(_NORM)),
            *_figures(step),
            *(causes.verdict(verdicts.get(name)) for name in _CHEAP),
        )
    return table


def _causes(steps: Sequence[StepReplay], *, most: int | None = None) -> Blocks:
    """Each cause with its steps and what to do about it; causes that differ in their numbers only are one."""
    found: dict[tuple[str, str], list[tuple[int, Quantity]]] = {}
    for step in steps:
        for quantity in step.quantities:
            if quantity.cause is not None:
                found.setdefault((quantity.name, _shape(quantity.cause)), []).append((step.step, quantity))
    by_norm_first = sorted(found.items(), key=lambda item: (item[0][0] != _NORM, -len(item[1])))
    for (name, _), places in by_norm_first[:most]:
        first = places[0][1]
        head = Text(f"{name}, step{'s' * (len(places) > 1)} {as_ranges([step for step, _ in places])}: ", style="bold")
        head.append(first.verdict, style=STYLES[_TONES[first.verdict]])
        advice = f". {first.advice}" if first.advice else ""
        yield Group(head, Padding(cell(f"{first.cause}{advice}"), (0, 0, 0, 2)))
    if most is not None and len(found) > most:
        yield cell(f"{len(found) - most} more causes: --show causes.")


class _Causes:
    """Verdicts whose causes are footnotes; causes that differ in their numbers only share one."""

    def __init__(self, steps: Sequence[StepReplay], notes: Footnotes) -> None:
        self._notes = notes
        self._first: dict[str, str] = {}
        causes = [q.cause for step in steps for q in step.quantities if q.cause]
        self._shapes = [_shape(cause) for cause in causes]

    def verdict(self, quantity: Quantity | None) -> Text:
        if quantity is None:
            return Text("")
        style = STYLES[_TONES[quantity.verdict]]
        if quantity.cause is None:
            return Text(quantity.verdict, style=style)
        shape = _shape(quantity.cause)
        likewise = self._shapes.count(shape) - 1
        more = f" (likewise {likewise} more)" if likewise else ""
        advice = f". {quantity.advice}" if quantity.advice else ""
        reason = self._first.setdefault(shape, f"{quantity.cause}{more}{advice}")
        return Text(f"{quantity.verdict}{self._notes.number(reason)}", style=style)


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

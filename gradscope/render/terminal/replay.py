"""Replay: the verdict, what the trainer logged beside what the rollouts and weights give, and the causes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import SCREEN_ROWS, Blocks, answer
from gradscope.render.terminal.layout import draw_table, losses
from gradscope.render.terminal.names import ALL
from gradscope.render.views.view import Column, Word, digits, evenly
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes
from gradscope.render.words.tones import STYLES, Tone
from gradscope.results.norms import Quantity, ReplayReport, StepReplay
from gradscope.say import as_ranges, number

_TONES: Mapping[str, Tone] = {"match": "fine", "mismatch": "problem", "cannot": "unknown", "no_gradient": "unknown"}
_NORM = "grad_norm"
_MOST_CAUSES = 2
"""Where no step could be judged."""


def replay_table(report: ReplayReport, show: Sequence[str] = ()) -> Group:
    """The verdict, the steps that mismatch and those that match, one line of counts; ``show`` adds tables."""
    return answer(
        "replay",
        (f"Replay: {report.headline}. {report.findings[0]}", *report.findings[1:]),
        _answer(report, whole="steps" in show or ALL in show),
        facts=losses([report.source]),
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
    elif len(judged) > SCREEN_ROWS:
        shown = sorted(evenly(wrong or judged, SCREEN_ROWS), key=lambda step: step.step)
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
        yield cell(f"Not shown: {numbers} (--show steps,causes).")
    if not shown:
        yield from _causes(left, most=_MOST_CAUSES)


def _steps(steps: Sequence[StepReplay], notes: Footnotes) -> Table:
    likewise = Counter(_shape(one.cause) for step in steps for one in step.quantities if one.cause)
    first: dict[str, str] = {}

    def verdict(name: str) -> Callable[[StepReplay], Word]:
        """A verdict whose cause is a footnote; causes that differ in their numbers only share the first one's."""

        def word(step: StepReplay) -> Word:
            one = next((one for one in step.quantities if one.name == name), None)
            if one is None or one.cause is None:
                return Word("") if one is None else Word(one.verdict, _TONES[one.verdict])
            shape = _shape(one.cause)
            more = f" (likewise {likewise[shape] - 1} more)" if likewise[shape] > 1 else ""
            advice = f". {one.advice}" if one.advice else ""
            return Word(one.verdict, _TONES[one.verdict], first.setdefault(shape, f"{one.cause}{more}{advice}"))

        return word

    columns = (
        Column("step", digits("step"), "count"),
        Column("grad_norm", verdict(_NORM)),
        Column("logged", lambda step: _of_norm(step.logged, lambda norm: number(norm, ".6g")), "count"),
        Column("recomputed", lambda step: _of_norm(step.recomputed, "{:.6g}".format), "count"),
        Column("relative\nerror", lambda step: step.relative_error.get(_NORM, ""), "norm"),
        Column("reward", verdict("reward")),
        Column("advantage", verdict("advantage")),
        Column("zero std", verdict("frac_reward_zero_std")),
    )
    return draw_table(columns, steps, notes)


def _of_norm(numbers: Mapping[str, float], words: Callable[[float], str]) -> str:
    """The norm in words; blank where the verdict's footnote says why there is none."""
    return words(numbers[_NORM]) if _NORM in numbers else ""


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


def _shape(cause: str) -> str:
    return re.sub(r"\d[\d.e+%-]*", "0", cause).replace("0 updates", "0 update")

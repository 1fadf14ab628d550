"""Gradient norms: replay, logged and recomputed numbers; spike, the step that stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import SCREEN_ROWS, Answer, Blocks
from gradscope.render.terminal.layout import draw, draw_table, losses
from gradscope.render.terminal.names import ALL
from gradscope.render.views.view import Column, Selection, View, Word, digits
from gradscope.render.words import FACTS, STYLES, Footnotes, Tone, cell
from gradscope.results.norms import Quantity, ReplayReport, SpikeReport, StepReplay
from gradscope.say import counted, evenly, named_steps, number, without_numbers

_TONES: Mapping[str, Tone] = {"match": "fine", "mismatch": "problem", "cannot": "unknown", "no_gradient": "unknown"}
_NORM = "grad_norm"
_MAX_CAUSES = 2  # where no step could be judged


def replay_table(report: ReplayReport, show: Sequence[str] = ()) -> Group:
    """The verdict, the steps that mismatch and those that match, one line of counts; ``show`` adds tables."""
    # where no step could be recomputed the first finding says just that
    are_all_open = report.verdict == "cannot" and all(step.verdict != "match" for step in report.steps)
    says_all = are_all_open and report.findings[0].startswith(_NORM)
    head = "" if says_all else f"{report.headline}. "
    return Answer(
        command="replay",
        headline=(f"Replay: {head}{report.findings[0]}", *report.findings[1:]),
        table=_answer(report, show_all="steps" in show or ALL in show),
        facts=losses([report.source]),
        findings=report.findings[1:],
        views={"causes": lambda notes: _causes(report.steps)},
        tone=_TONES[report.verdict],
    ).screen(show)


def _answer(report: ReplayReport, *, show_all: bool) -> Blocks:
    """Steps that were judged, mismatches first where there are many; the rest as counts."""
    wrong = [step for step in report.steps if step.verdict == "mismatch"]
    judged = [step for step in report.steps if step.verdict == "mismatch" or _NORM in step.recomputed]
    shown = list(judged)
    if show_all:
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
        yield from _causes(left, limit=_MAX_CAUSES)


def _steps(steps: Sequence[StepReplay], notes: Footnotes) -> Table:
    likewise = Counter(
        without_numbers(quantity.cause) for step in steps for quantity in step.quantities if quantity.cause
    )
    first: dict[str, str] = {}

    def verdict(name: str) -> Callable[[StepReplay], Word]:
        """A verdict whose cause is a footnote; causes that differ in their numbers only share the first one's."""

        def word(step: StepReplay) -> Word:
            quantity = next((quantity for quantity in step.quantities if quantity.name == name), None)
            if quantity is None or quantity.cause is None:
                return Word("") if quantity is None else Word(quantity.verdict, _TONES[quantity.verdict])
            shape = without_numbers(quantity.cause)
            more = f" (likewise {likewise[shape] - 1} more)" if likewise[shape] > 1 else ""
            advice = f". {quantity.advice}" if quantity.advice else ""
            note = first.setdefault(shape, f"{quantity.cause}{more}{advice}")
            return Word(quantity.verdict, _TONES[quantity.verdict], note)

        return word

    columns = (
        Column("step", digits("step"), "count"),
        Column("grad_norm", verdict(_NORM)),
        # blank where the verdict's footnote says why there is none
        Column("logged", lambda step: number(step.logged[_NORM], ".6g") if _NORM in step.logged else "", "count"),
        Column("recomputed", lambda step: f"{step.recomputed[_NORM]:.6g}" if _NORM in step.recomputed else "", "count"),
        Column("relative\nerror", lambda step: step.relative_error.get(_NORM, ""), "norm"),
        Column("reward", verdict("reward")),
        Column("advantage", verdict("advantage")),
        Column("zero std", verdict("frac_reward_zero_std")),
    )
    return draw_table(columns, steps, notes)


def _causes(steps: Sequence[StepReplay], *, limit: int | None = None) -> Blocks:
    """Each cause with its steps and its advice; causes that differ in their numbers only are one."""
    by_cause: dict[tuple[str, str], list[tuple[int, Quantity]]] = {}
    for step in steps:
        for quantity in step.quantities:
            if quantity.cause is not None:
                by_cause.setdefault((quantity.name, without_numbers(quantity.cause)), []).append((step.step, quantity))
    by_norm_first = sorted(by_cause.items(), key=lambda item: (item[0][0] != _NORM, -len(item[1])))
    for (name, _), cases in by_norm_first[:limit]:
        first = cases[0][1]
        head = Text(f"{name}, {named_steps([step for step, _ in cases])}: ", style="bold")
        head.append(first.verdict, style=STYLES[_TONES[first.verdict]])
        advice = f". {first.advice}" if first.advice else ""
        yield Group(head, Padding(cell(f"{first.cause}{advice}"), (0, 0, 0, 2)))
    if limit is not None and len(by_cause) > limit:
        yield cell(f"{counted(len(by_cause) - limit, 'more cause')}: --show causes.")


_MAX_ROLLOUTS = 5  # of the answer; all are in ``--show rollouts``
_MAX_SHOWN = 40
_MAX_TENSORS = 20


def spike_table(report: SpikeReport, show: Sequence[str] = ()) -> Group:
    """Whether the step stands out, its largest rollouts, at most three findings; ``show`` adds tables."""
    tone: Tone = "fine" if any(metric.deviation.is_defined for metric in report.metrics) else "unknown"
    if any(not metric.value.is_defined for metric in report.metrics):
        tone = "problem"
    elif any(metric.is_unusual for metric in report.metrics):
        tone = "look"
    return Answer(
        command="spike",
        headline=report.findings,
        table=_spike_answer(report),
        facts=losses([report.source]),
        findings=report.findings[1:],
        views={
            "metrics": partial(draw, _METRICS if _is_recomputed(report) else (), report),
            "rollouts": partial(_more_rollouts, report),
            "removals": partial(draw, _REMOVALS, report),
            "tokens": partial(draw, _TOKENS, report),
            "tensors": partial(draw, _TENSORS, report),
        },
        tone=tone,
    ).screen(show)


def _is_recomputed(report: SpikeReport) -> bool:
    """Whether the rollouts have parts of the gradient; where they have none, their order says nothing."""
    return any(rollout.projection_share.is_defined for rollout in report.rollouts)


def _spike_answer(report: SpikeReport) -> Blocks:
    notes = Footnotes()
    if _is_recomputed(report):
        yield cell("Rollouts by their share of the gradient")
        yield from draw(_rollouts(_MAX_ROLLOUTS, recomputed=True), report, notes)
        notes.remark(FACTS)
    else:
        yield from draw(_METRICS, report, notes)
    yield from map(cell, notes.lines())


def _more_rollouts(report: SpikeReport, notes: Footnotes) -> Blocks:
    """Those beyond the answer's, as many as a screen bears."""
    recomputed = _is_recomputed(report)
    if len(report.rollouts) > (_MAX_ROLLOUTS if recomputed else 0):
        yield from draw(_rollouts(_MAX_SHOWN, recomputed=recomputed), report, notes)
        if len(report.rollouts) > _MAX_SHOWN:
            notes.remark(f"{len(report.rollouts) - _MAX_SHOWN} more rollouts: --output DIR writes all.")


def _rollouts(limit: int, *, recomputed: bool) -> View:
    columns = (
        Column("group", "group_id", limit=14),
        Column("sample", digits("sample"), "count"),
        Column("reward", "reward", "norm"),
        Column("advantage", "advantage", "gap"),
        Column("tokens", "num_tokens", "count"),
        Column("repeated\n4-grams", "repeated_ngrams", "share"),
        Column("share of\ngradient", "projection_share", "gap"),
        Column("norm\nwithout", "norm_without", "norm"),
    )
    return View("rollouts", columns if recomputed else columns[:-2], lambda rollouts: Selection(rollouts[:limit]))


_METRICS = View(
    "metrics",
    (
        Column("logged", "name", limit=28),
        Column("at the step", "value", "norm"),
        Column("around it", "typical", "norm"),
        Column("standard\ndeviations", "deviation", "rank"),
        Column("by chance", "by_chance", "rank"),
    ),
)
_REMOVALS = View(
    "removals",
    (
        Column("left out", digits("num_removed"), "count"),
        Column("the last of them", lambda removal: f"sample {removal.sample} of {removal.group_id}", limit=40),
        Column("norm", "grad_norm", "norm"),
    ),
)
_TOKENS = View(
    "tokens",
    (
        Column("token", lambda token: repr(token.text), limit=16),
        Column("group", "group_id", limit=16),
        Column("sample", digits("sample"), "count"),
        Column("position", digits("position"), "count"),
        Column("norm", "norm", "norm"),
        Column("made", lambda token: "more likely" if token.weight < 0 else "less likely"),
        Column("entropy", "entropy", "rank"),
    ),
)
_TENSORS = View(
    "tensors",
    (
        Column("parameter", "tensor", limit=40),
        Column("norm", "norm", "norm"),
        Column("share of\nsquared norm", "tensor_share", "share"),
        Column("share of\nparameters", "frac_parameters", "share"),
    ),
    lambda tensors: Selection(tensors[:_MAX_TENSORS]),
)

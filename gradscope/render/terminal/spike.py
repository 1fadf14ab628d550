"""A step that stands out: whether it does, the rollouts that make it, and what is left without them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Group

from gradscope.render.terminal.answer import Blocks, answer
from gradscope.render.terminal.layout import draw, losses
from gradscope.render.views.view import Column, Selection, View, digits
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, Footnotes
from gradscope.render.words.tones import Tone
from gradscope.results.norms import SpikeReport

_MOST_ROLLOUTS = 5
"""Of the answer; all are in ``--show rollouts``."""
_MOST_SHOWN = 40
_MOST_TENSORS = 20


def spike_table(report: SpikeReport, show: Sequence[str] = ()) -> Group:
    """Whether the step stands out, its largest rollouts, at most three findings; ``show`` adds tables."""
    return answer(
        "spike",
        report.findings,
        _answer(report),
        facts=losses([report.source]),
        findings=report.findings[1:],
        views={
            "metrics": partial(draw, (_METRICS,) if _is_recomputed(report) else (), report),
            "rollouts": partial(_more_rollouts, report),
            "removals": partial(draw, (_REMOVALS,), report),
            "tokens": partial(draw, (_TOKENS,), report),
            "tensors": partial(draw, (_TENSORS,), report),
        },
        show=show,
        tone=_tone(report),
    )


def _tone(report: SpikeReport) -> Tone:
    if any(not one.value.is_defined for one in report.metrics):
        return "problem"
    if any(one.is_unusual for one in report.metrics):
        return "look"
    return "fine" if any(one.deviation.is_defined for one in report.metrics) else "unknown"


def _is_recomputed(report: SpikeReport) -> bool:
    """Whether the rollouts have parts of the gradient; where they have none, their order says nothing."""
    return any(one.projection_share.is_defined for one in report.rollouts)


def _answer(report: SpikeReport) -> Blocks:
    notes = Footnotes()
    if _is_recomputed(report):
        yield cell("Rollouts by their share of the gradient")
        yield from draw((_rollouts(_MOST_ROLLOUTS, recomputed=True),), report, notes)
        notes.remark(FACTS)
    else:
        yield from draw((_METRICS,), report, notes)
    yield from map(cell, notes.lines())


def _more_rollouts(report: SpikeReport, notes: Footnotes) -> Blocks:
    """Those beyond the answer's, as many as a screen bears."""
    recomputed = _is_recomputed(report)
    if len(report.rollouts) > (_MOST_ROLLOUTS if recomputed else 0):
        yield from draw((_rollouts(_MOST_SHOWN, recomputed=recomputed),), report, notes)
        if len(report.rollouts) > _MOST_SHOWN:
            notes.remark(f"{len(report.rollouts) - _MOST_SHOWN} more rollouts: --output DIR writes all.")


def _rollouts(most: int, *, recomputed: bool) -> View:
    columns = [
        Column("group", "group_id", limit=14),
        Column("sample", digits("sample"), "count"),
        Column("reward", "reward", "norm"),
        Column("advantage", "advantage", "gap"),
        Column("tokens", "num_tokens", "count"),
        Column("repeated\n4-grams", "repeated_ngrams", "share"),
    ]
    if recomputed:
        columns += [
            Column("share of\ngradient", "projection_share", "gap"),
            Column("norm\nwithout", "norm_without", "norm"),
        ]
    return View("rollouts", columns, lambda rollouts: Selection(rollouts[:most]))


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
        Column("the last of them", lambda one: f"sample {one.sample} of {one.group_id}", limit=40),
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
    lambda tensors: Selection(tensors[:_MOST_TENSORS]),
)

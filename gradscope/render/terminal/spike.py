"""A step that stands out: whether it does, the rollouts that make it, and what is left without them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from gradscope.render.terminal.answer import Blocks, answer
from gradscope.render.terminal.layout import Column, add_row, new_table, source_line
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, UNDEFINED, Footnotes, format_estimate, format_number
from gradscope.render.words.tones import Tone
from gradscope.results.spike import SpikeReport

_MOST_ROLLOUTS = 8
"""Of the answer; all are in ``--show rollouts``."""
_MOST_SHOWN = 40
_MOST_TENSORS = 20


def spike_table(report: SpikeReport, show: Sequence[str] = ()) -> Group:
    """Whether the step stands out, its largest rollouts, at most three findings.

    Args:
        report: The step taken apart.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints.
    """
    return answer(
        "spike",
        report.findings,
        _answer(report),
        facts=[source_line(report.source)],
        findings=report.findings[1:],
        views={
            "metrics": lambda notes: [_metrics(report, notes)] if report.metrics and _is_recomputed(report) else [],
            "rollouts": lambda notes: _more_rollouts(report, notes),
            "removals": lambda notes: [_removals(report)] if report.removals else [],
            "tokens": lambda notes: [_tokens(report)] if report.tokens else [],
            "tensors": lambda notes: [_tensors(report)] if report.tensors else [],
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
        yield _rollouts(report, _MOST_ROLLOUTS, notes)
        notes.remark(FACTS)
    elif report.metrics:
        yield _metrics(report, notes)
    yield from map(cell, notes.lines())


def _more_rollouts(report: SpikeReport, notes: Footnotes) -> Blocks:
    """Those beyond the answer's, as many as a screen bears."""
    in_answer = _MOST_ROLLOUTS if _is_recomputed(report) else 0
    if len(report.rollouts) > in_answer:
        yield _rollouts(report, _MOST_SHOWN, notes)
        if len(report.rollouts) > _MOST_SHOWN:
            notes.remark(f"{len(report.rollouts) - _MOST_SHOWN} more rollouts: --output DIR writes all.")


def _rollouts(report: SpikeReport, most: int, notes: Footnotes) -> Table:
    columns: list[Column] = [("group", "left"), ("sample", "right"), ("reward", "right"), ("advantage", "right")]
    columns += [("tokens", "right"), ("repeated\n4-grams", "right")]
    if recomputed := _is_recomputed(report):
        columns += [("share of\ngradient", "right"), ("norm\nwithout", "right")]
    table = new_table(columns)
    for one in report.rollouts[:most]:
        add_row(
            table,
            cell(one.group_id, limit=14),
            str(one.sample),
            UNDEFINED if one.reward is None else format_number(one.reward, "norm"),
            UNDEFINED if one.advantage is None else format_number(one.advantage, "gap"),
            UNDEFINED if one.num_tokens is None else f"{one.num_tokens:,}",
            format_estimate(one.repeated_ngrams, notes, "share"),
            *(
                (format_estimate(one.projection_share, notes, "gap"), format_estimate(one.norm_without, notes, "norm"))
                if recomputed
                else ()
            ),
        )
    return table


def _metrics(report: SpikeReport, notes: Footnotes) -> Table:
    columns: list[Column] = [("logged", "left"), ("at the step", "right"), ("around it", "right")]
    table = new_table([*columns, ("standard\ndeviations", "right"), ("by chance", "right")])
    for one in report.metrics:
        numbers = (one.value, one.typical)
        add_row(
            table,
            cell(one.name, limit=28),
            *(format_estimate(number, notes, "norm") for number in numbers),
            *(format_estimate(number, notes, "rank") for number in (one.deviation, one.by_chance)),
        )
    return table


def _removals(report: SpikeReport) -> Table:
    table = new_table([("left out", "right"), ("the last of them", "left"), ("norm", "right")])
    for one in report.removals:
        name = f"sample {one.sample} of {one.group_id}"
        add_row(table, str(one.num_removed), cell(name, limit=40), format_number(one.grad_norm, "norm"))
    return table


def _tokens(report: SpikeReport) -> Table:
    columns: list[Column] = [("token", "left"), ("group", "left"), ("sample", "right"), ("position", "right")]
    table = new_table([*columns, ("norm", "right"), ("made", "left"), ("entropy", "right")])
    for one in report.tokens:
        add_row(
            table,
            cell(repr(one.text), limit=16),
            cell(one.group_id, limit=16),
            str(one.sample),
            str(one.position),
            format_number(one.norm, "norm"),
            "more likely" if one.weight < 0 else "less likely",
            format_number(one.entropy, "rank"),
        )
    return table


def _tensors(report: SpikeReport) -> Table:
    columns: list[Column] = [("parameter", "left"), ("norm", "right"), ("share of\nsquared norm", "right")]
    table = new_table([*columns, ("share of\nparameters", "right")])
    for one in report.tensors[:_MOST_TENSORS]:
        add_row(
            table,
            cell(one.tensor, limit=40),
            format_number(one.norm, "norm"),
            format_number(one.tensor_share, "share"),
            format_number(one.frac_parameters, "share"),
        )
    return table

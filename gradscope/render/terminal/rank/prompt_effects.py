"""What prompts do to the correct answers of a step's other prompts and of held-out ones, as tables of the last step."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import UNDEFINED, Footnotes, Style, format_estimate, format_number
from gradscope.results.ranks.heldout import HeldoutInfluence, HeldoutTransfer
from gradscope.results.ranks.interference import Interference, PromptInfluence

_SHOWN = 5
"""Prompts at either end of the ranking."""
_ONE_OTHER = "it rests on one other group, or all others have this very value"
_ONE_HELDOUT = "it rests on one held-out prompt, or all have this very value"


def interference_table(steps: Sequence[Interference], notes: Footnotes) -> Table:
    """Over pairs of different prompts, under each formulation."""
    return _pairs_table(steps, notes, "rank", _ONE_OTHER)


def influences_table(influences: Sequence[PromptInfluence], notes: Footnotes) -> Table:
    """The prompts that help the others most, and those that hurt them most; all are in the files."""
    return _ranking(influences, notes, "influence on the others", "rank", _ONE_OTHER)


def heldout_table(steps: Sequence[HeldoutTransfer], notes: Footnotes) -> Table:
    """Over pairs of a training and a held-out prompt, under each formulation."""
    last = max(row.step for row in steps)
    first = next(row for row in steps if row.step == last)
    notes.remark(
        f"Step {last}: groups with a gradient {first.num_groups} (advantage {first.advantage}), held-out prompts "
        f"{first.num_heldout}"
    )
    return _pairs_table(steps, notes, "share", _ONE_HELDOUT)


def heldout_influences_table(influences: Sequence[HeldoutInfluence], notes: Footnotes) -> Table:
    """The prompts that help held-out ones most, and those that hurt them most; all are in the files."""
    return _ranking(influences, notes, "influence on held-out prompts", "share", _ONE_HELDOUT)


def _pairs_table(
    steps: Sequence[Interference] | Sequence[HeldoutTransfer], notes: Footnotes, of_cosine: Style, alone: str
) -> Table:
    last = max(row.step for row in steps)
    heads = ("pairs that hurt", "cosine", "transfer")
    table = new_table([(f"step {last}", "left"), *((head, "left") for head in heads)])
    for row in (row for row in steps if row.step == last):
        add_row(
            table,
            cell(row.advantage, limit=13),
            format_estimate(row.frac_hurt, notes, "share", alone=alone),
            format_estimate(row.cosine, notes, of_cosine, alone=alone),
            format_estimate(row.transfer, notes, "rank", alone=alone),
        )
    return table


def _ranking(
    influences: Sequence[PromptInfluence] | Sequence[HeldoutInfluence],
    notes: Footnotes,
    head: str,
    style: Style,
    alone: str,
) -> Table:
    last = max(row.step for row in influences)
    known = [(row.influence.value, row) for row in influences if row.step == last and row.influence.value is not None]
    ranked = [row for _, row in sorted(known, key=lambda pair: -pair[0])]
    shown = ranked if len(ranked) <= 2 * _SHOWN else [*ranked[:_SHOWN], *ranked[-_SHOWN:]]
    table = new_table([("group", "left"), ("pass rate", "right"), (head, "left")])
    for row in shown:
        add_row(
            table,
            cell(row.group_id, limit=28),
            UNDEFINED if row.pass_rate is None else format_number(row.pass_rate, "share"),
            format_estimate(row.influence, notes, style, alone=alone),
        )
    if len(shown) < len(ranked):
        notes.remark(f"{len(ranked) - len(shown)} more between them are in the files (--output)")
    return table

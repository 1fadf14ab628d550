"""What prompts do to each other's correct answers, as tables of the last step."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes, format_estimate, format_number
from gradscope.results.ranks.interference import Interference, PromptInfluence

_SHOWN = 5
"""Prompts at either end of the ranking."""
_ALONE = "it rests on one other group, or all others have this very value"


def interference_table(steps: Sequence[Interference], notes: Footnotes) -> Table:
    """Over pairs of different prompts, under each formulation."""
    last = max(row.step for row in steps)
    heads = ("pairs that hurt", "cosine", "transfer")
    table = new_table([(f"step {last}", "left"), *((head, "left") for head in heads)])
    for row in (row for row in steps if row.step == last):
        add_row(
            table,
            cell(row.advantage, limit=13),
            format_estimate(row.frac_hurt, notes, "share", alone=_ALONE),
            format_estimate(row.cosine, notes, "rank", alone=_ALONE),
            format_estimate(row.transfer, notes, "rank", alone=_ALONE),
        )
    return table


def influences_table(influences: Sequence[PromptInfluence], notes: Footnotes) -> Table:
    """The prompts that help the others most, and those that hurt them most; all are in the files."""
    last = max(row.step for row in influences)
    known = [(row.influence.value, row) for row in influences if row.step == last and row.influence.value is not None]
    ranked = [row for _, row in sorted(known, key=lambda pair: -pair[0])]
    shown = ranked if len(ranked) <= 2 * _SHOWN else [*ranked[:_SHOWN], *ranked[-_SHOWN:]]
    table = new_table([("group", "left"), ("pass rate", "right"), ("influence on the others", "left")])
    for row in shown:
        add_row(
            table,
            cell(row.group_id, limit=28),
            format_number(row.pass_rate, "share"),
            format_estimate(row.influence, notes, "rank", alone=_ALONE),
        )
    if len(shown) < len(ranked):
        notes.remark(f"{len(ranked) - len(shown)} more between them are in the files (--output)")
    return table

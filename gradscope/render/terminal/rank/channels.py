"""What the sum of a group's gradients keeps of what its rollouts share and of what is each one's own."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.merge_equal_curves import merge_same
from gradscope.render.words.numbers import IN_THE_FILES, Footnotes, format_estimate, why_alone
from gradscope.results.ranks.curves import RankCurvePoint

_CHANCE = "Kept: the energy of the sum over that of the rows; 1 for rows of random signs, less where they cancel"


def channels_table(points: Sequence[RankCurvePoint], notes: Footnotes) -> Table:
    """One row per formulation and group size, at the last step."""
    last = max(point.step for point in points)
    columns: list[Column] = [
        (f"step {last}", "left"),
        *((title, "right") for title in ("size", "shared\ndirec-\ntions", "their\nenergy")),
        *((title, "left") for title in ("kept of what\nis shared", "kept of\nthe rest")),
    ]
    table = new_table(columns)
    for (name, *others), curve in merge_same([point for point in points if point.step == last]):
        mark = notes.number(f"{', '.join(others)}: the same, up to one factor a group") if others else ""
        for row, point in enumerate(sorted(curve, key=lambda point: point.group_size)):
            label = "" if row else plain(name, limit=13 - len(mark)) + mark
            add_row(table, cell(label, limit=13), *_cells(point, notes))
    notes.remark(_CHANCE)
    notes.remark(IN_THE_FILES)
    return table


def _cells(point: RankCurvePoint, notes: Footnotes) -> tuple[str, ...]:
    kept = (point.shared_kept, point.residual_kept)
    return (
        str(point.group_size),
        format_estimate(point.shared_directions, notes, "rank", interval=False),
        format_estimate(point.shared_energy, notes, "share", interval=False),
        *(format_estimate(part, notes, "rank", alone=why_alone(part.num_units)) for part in kept),
    )

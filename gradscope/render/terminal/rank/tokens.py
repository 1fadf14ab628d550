"""Ranks of token rows as a table. Letters: G group size, N token rows of a group."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import IN_THE_FILES, UNDEFINED, Footnotes, format_estimate, format_number, why_alone
from gradscope.results.ranks.curves import TokenRankPoint

MOST_ROWS = 24
"""A longer table is cut to the last step, and says so; every row is in the JSON and the CSV."""

_NULLS = {"unweighted": "scores", "gaussian": "unre-\nlated"}
"""Null models with a column; the others stand in the JSON."""


def token_rank_table(points: Sequence[TokenRankPoint], notes: Footnotes) -> Table:
    """Ranks of token rows, a line per step, advantage and group size; of many lines those of the last step."""
    columns: list[Column] = [
        ("step", "right"),
        ("advantage", "left"),
        ("size", "right"),
        ("live", "right"),
        ("tokens", "right"),
        ("effective rank", "left"),
        *((title, "right") for title in _NULLS.values()),
    ]
    table = new_table(columns)
    last = max(point.step for point in points)
    shown = points if len(points) <= MOST_ROWS else [point for point in points if point.step == last]
    for point in shown:
        add_row(
            table,
            str(point.step),
            cell(point.advantage, limit=14),
            str(point.group_size),
            f"{point.num_groups - point.num_dead}/{point.num_groups}",
            UNDEFINED if point.num_rows.value is None else format_number(point.num_rows.value, "count"),
            format_estimate(point.effective_rank, notes, "rank", alone=why_alone(point.num_groups - point.num_dead)),
            *(_null_cell(point, name, notes) for name in _NULLS),
        )
    notes.remark(IN_THE_FILES)
    if len(shown) < len(points):
        notes.remark(f"{len(points) - len(shown)} lines of other steps are in the JSON and the CSV")
    return table


def _null_cell(point: TokenRankPoint, name: str, notes: Footnotes) -> str:
    if name not in point.nulls:
        return UNDEFINED
    return format_estimate(point.nulls[name].effective_rank, notes, "rank", interval=False)

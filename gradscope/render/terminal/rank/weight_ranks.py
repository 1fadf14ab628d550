"""Ranks of dL/dW of one group as tables. Letters: R rollouts of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.merge_equal_curves import merge_same
from gradscope.render.words.numbers import IN_THE_FILES, UNDEFINED, Footnotes, format_estimate, why_alone
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.ranks.curves import WeightRankPoint

MOST_WEIGHTS = 24
"""A longer table is cut, and says so; every weight is in the JSON and the CSV."""


def weight_ranks_table(points: Sequence[WeightRankPoint], notes: Footnotes) -> Table:
    """The mean over all weights at the last step, a line an advantage and group size, beside its nulls."""
    columns: list[Column] = [
        ("advantage", "left"),
        ("size", "right"),
        ("live", "right"),
        ("rank of dL/dW", "left"),
        ("scores", "right"),
        ("shuffled", "right"),
        ("unre-\nlated", "right"),
        ("ratio", "right"),
    ]
    table = new_table(columns)
    over_all = [point for point in _at_last_step(points) if point.tensor is None]
    for (name, *others), merged in merge_same(over_all):
        mark = ""
        if others:
            same = f"{', '.join(others)}: the same, up to one factor a group"
            mark = notes.number(same)
        for row, point in enumerate(sorted(merged, key=lambda point: point.group_size)):
            label = "" if row else plain(name, limit=13 - len(mark)) + mark
            live = f"{point.num_groups - point.num_dead}/{point.num_groups}"
            alone = why_alone(point.num_groups - point.num_dead)
            rank = format_estimate(point.effective_rank, notes, "rank", alone=alone)
            add_row(table, cell(label, limit=13), str(point.group_size), live, rank, *_null_cells(point, notes))
    notes.remark(IN_THE_FILES)
    return table


def _null_cells(point: WeightRankPoint, notes: Footnotes) -> Iterator[str]:
    for name in ("unweighted", "shuffled", "gaussian"):
        null = point.nulls.get(name)
        yield UNDEFINED if null is None else format_estimate(null.effective_rank, notes, "rank", interval=False)
    gaussian = point.nulls.get("gaussian")
    yield UNDEFINED if gaussian is None else format_estimate(gaussian.ratio, notes, "share", interval=False)


def group_sizes_table(points: Sequence[WeightRankPoint], notes: Footnotes) -> Table:
    """Each weight at the last step under the advantage with most group sizes, a column a size: does the rank grow?"""
    last = [point for point in _at_last_step(points) if point.tensor is not None]
    sizes_of = {name: sorted({p.group_size for p in last if p.advantage == name}) for name in _names(last)}
    advantage = max(sizes_of, key=lambda name: len(sizes_of[name]))
    sizes = sizes_of[advantage]
    by_tensor: dict[str, dict[int, WeightRankPoint]] = {}
    for point in last:
        if point.advantage == advantage and point.tensor is not None:
            by_tensor.setdefault(point.tensor, {})[point.group_size] = point
    table = new_table([(f"weight ({advantage})", "left"), *((f"groups\nof {size}", "right") for size in sizes)])
    for tensor, by_size in list(by_tensor.items())[:MOST_WEIGHTS]:
        cells = (format_estimate(by_size[size].effective_rank, notes, "rank", interval=False) for size in sizes)
        add_row(table, cell(short_tensor(tensor), limit=24), *cells)
    notes.remark(IN_THE_FILES)
    if len(by_tensor) > MOST_WEIGHTS:
        notes.remark(f"{len(by_tensor) - MOST_WEIGHTS} more weights are in the JSON and the CSV")
    return table


def _at_last_step(points: Sequence[WeightRankPoint]) -> list[WeightRankPoint]:
    step = max(point.step for point in points)
    return [point for point in points if point.step == step]


def _names(points: Sequence[WeightRankPoint]) -> list[str]:
    return list(dict.fromkeys(point.advantage for point in points))

"""Effective rank against the number of rollouts, with its nulls: the figure of the claim that a group has rank 2.

Letters: G group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.estimate import Estimate
from gradscope.render.figures.rank.null_models import STYLES
from gradscope.render.figures.style import (
    BLUE,
    INK,
    MUTED,
    first_middle_last,
    label_lines,
    label_room,
    name_of,
    new_figure,
    tick_at,
)
from gradscope.results.rank import RankReport
from gradscope.results.ranks.curves import RankCurvePoint, WeightRankPoint

_NULLS = ("unweighted", "shuffled", "gaussian")
_Point = RankCurvePoint | WeightRankPoint
_Chosen = TypeVar("_Chosen", bound=RankCurvePoint | WeightRankPoint)
_Known = Sequence[tuple[int, Estimate]]


def draw_sizes(report: RankReport) -> dict[str, Figure]:
    """Ranks against G of the first formulation with several G, at the first, a middle and the last step, if any."""
    points = _of_several_sizes(report.curve)
    steps = first_middle_last(sorted({point.step for point in points}))
    return {"rank_sizes": _figure(points, steps, "Effective rank against the number of rollouts", ())} if points else {}


def draw_weight_sizes(report: RankReport) -> dict[str, Figure]:
    """The rank of dL/dW of one group against G: each weight, their mean, and its nulls, likewise."""
    points = _of_several_sizes([point for point in report.weight_curve if point.tensor is None])
    steps = first_middle_last(sorted({point.step for point in points}))
    if not points:
        return {}
    weights = [p for p in report.weight_curve if p.tensor is not None and p.advantage == points[0].advantage]
    return {"rank_weight_sizes": _figure(points, steps, "Effective rank of dL/dW of one group", weights)}


def _of_several_sizes(points: Sequence[_Point]) -> list[_Point]:
    """Those of the first formulation with several group sizes."""
    ranked = [point for point in points if point.effective_rank.value is not None]
    sizes: dict[str, set[int]] = {}
    for point in ranked:
        sizes.setdefault(point.advantage, set()).add(point.group_size)
    chosen = next((advantage for advantage, group_sizes in sizes.items() if len(group_sizes) > 1), None)
    return [point for point in ranked if point.advantage == chosen]


def _figure(points: Sequence[_Point], steps: Sequence[int], heading: str, weights: Sequence[WeightRankPoint]) -> Figure:
    name = f"mean, {name_of(points[0].advantage)}" if weights else name_of(points[0].advantage)
    dotted = "the constant 2 that binary rewards have been said to give"
    dotted = f"dotted: {dotted}; thin: each weight" if weights else f"dotted: the ceiling, G, and {dotted}"
    figure, axes = new_figure(
        heading,
        f"effective rank = {metric('effective_rank').formula}; mean over live groups, 95 % interval\n{dotted}",
        columns=len(steps),
        height=3.9,
        width=7.6 if len(steps) > 1 else 5.4,
        right=label_room([name, *(STYLES[null][0] for null in _NULLS)]),
        panel_titles=True,
    )
    sizes = sorted({point.group_size for point in points})
    highest = max([float(sizes[-1]), *(rank.ends[1] for rank in _ranks(points, weights))])
    for place, (panel, step) in enumerate(zip(axes, steps, strict=True)):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
        panel.set_ylim(0.93, highest * 1.1)
        tick_at(panel.xaxis, [1, 2, *sizes])
        tick_at(panel.yaxis, [float(2**power) for power in range(int(np.log2(highest)) + 1)])
        panel.set_xlabel("G")
        panel.set_title(f"step {step}", loc="left", fontsize=9, color=INK)
        if not weights:
            panel.plot(sizes, sizes, color=MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(2, color=MUTED, linewidth=0.8, linestyle=":")
        for tensor in dict.fromkeys(point.tensor for point in weights):
            of_tensor = [(p.group_size, p.effective_rank) for p in _at(weights, step) if p.tensor == tensor]
            defined = [(size, rank) for size, rank in of_tensor if rank.value is not None]
            _line(panel, defined, color=MUTED, line="-", marker="", width=0.6)
        _panel(panel, _at(points, step), name, last=place == len(steps) - 1)
        if place:
            panel.tick_params(labelleft=False)
    return figure


def _at(points: Sequence[_Chosen], step: int) -> list[_Chosen]:
    return sorted((point for point in points if point.step == step), key=lambda point: point.group_size)


def _ranks(points: Sequence[_Point], weights: Sequence[WeightRankPoint]) -> list[Estimate]:
    """All that is drawn."""
    nulls = [point.nulls[null].effective_rank for point in points for null in _NULLS if null in point.nulls]
    own = [point.effective_rank for point in (*points, *weights)]
    return [rank for rank in (*own, *nulls) if rank.is_defined]


def _panel(axes: Axes, points: Sequence[_Point], name: str, *, last: bool) -> None:
    labels = []
    for null in _NULLS:
        ranks = [(p.group_size, p.nulls[null].effective_rank) for p in points if null in p.nulls]
        defined = [(size, rank) for size, rank in ranks if rank.value is not None]
        if defined:
            label, color, line, marker = STYLES[null]
            end = _line(axes, defined, color=color, line=line, marker=marker, width=1.2)
            labels.append((end, label, color))
    measured = [(point.group_size, point.effective_rank) for point in points]
    labels.append((_line(axes, measured, color=BLUE, line="-", marker="o", width=1.8), name, BLUE))
    lows, highs = zip(*(rank.ends for _, rank in measured), strict=True)
    axes.fill_between([size for size, _ in measured], lows, highs, color=BLUE, alpha=0.15, linewidth=0)
    if last:
        label_lines(axes, labels, gap=0.075)


def _line(axes: Axes, ranks: _Known, *, color: str, line: object, marker: str, width: float) -> float:
    """Draws a line, and returns where it ends."""
    values = [rank.value or 0.0 for _, rank in ranks]
    axes.plot(
        [size for size, _ in ranks], values, color=color, linestyle=line, marker=marker, markersize=3.5, linewidth=width
    )
    return values[-1]

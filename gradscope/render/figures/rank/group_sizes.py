"""Effective rank against the number of rollouts, with its nulls: the figure of the claim that a group has rank 2.

Letters: G group size.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from gradscope.results.rank import RankCurvePoint, RankReport

_NULLS = ("unweighted", "shuffled", "gaussian")
_Known = Sequence[tuple[int, Estimate]]


def draw_sizes(report: RankReport) -> dict[str, Figure]:
    """Ranks against G of the first formulation with several G, at the first, a middle and the last step, if any."""
    sizes: dict[str, set[int]] = {}
    for point in report.curve:
        if point.effective_rank.value is not None:
            sizes.setdefault(point.advantage, set()).add(point.group_size)
    chosen = next((advantage for advantage, group_sizes in sizes.items() if len(group_sizes) > 1), None)
    points = [p for p in report.curve if p.advantage == chosen and p.effective_rank.value is not None]
    steps = first_middle_last(sorted({point.step for point in points}))
    return {"rank_sizes": _figure(points, steps)} if points else {}


def _figure(points: Sequence[RankCurvePoint], steps: Sequence[int]) -> Figure:
    name = name_of(points[0].advantage)
    figure, axes = new_figure(
        "Effective rank against the number of rollouts",
        f"effective rank = {metric('effective_rank').formula}; mean over live groups, 95 % interval\n"
        "dotted: the ceiling, G, and the constant 2 that binary rewards have been said to give",
        columns=len(steps),
        height=3.9,
        width=7.6 if len(steps) > 1 else 5.4,
        right=label_room([name, *(STYLES[null][0] for null in _NULLS)]),
        panel_titles=True,
    )
    sizes = sorted({point.group_size for point in points})
    for place, (panel, step) in enumerate(zip(axes, steps, strict=True)):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
        panel.set_ylim(0.93, sizes[-1] * 1.1)
        for axis in (panel.xaxis, panel.yaxis):
            tick_at(axis, [1, 2, *sizes])
        panel.set_xlabel("G")
        panel.set_title(f"step {step}", loc="left", fontsize=9, color=INK)
        panel.plot(sizes, sizes, color=MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(2, color=MUTED, linewidth=0.8, linestyle=":")
        of_step = sorted((p for p in points if p.step == step), key=lambda point: point.group_size)
        _panel(panel, of_step, name, last=place == len(steps) - 1)
        if place:
            panel.tick_params(labelleft=False)
    return figure


def _panel(axes: Axes, points: Sequence[RankCurvePoint], name: str, *, last: bool) -> None:
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

"""The mean spectrum of a group beside its null models: how steeply singular values fall, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from gradscope.estimate import Estimate
from gradscope.render.figures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    first_middle_last,
    label_lines,
    label_room,
    name_of,
    new_figure,
)
from gradscope.results.rank import RankReport
from gradscope.results.ranks.curves import RankCurvePoint

_FLOOR = 1e-4
"""Smaller shares of the sum change no effective rank and are not drawn."""
STYLES: dict[str, tuple[str, str, Any, str]] = {
    "unweighted": ("scores", ORANGE, "--", "s"),
    "shuffled": ("shuffled", GREEN, "-.", "^"),
    "signs": ("signs", PURPLE, ":", "D"),
    "gaussian": ("Gauss", MUTED, (0, (1, 2.5)), ""),
}
"""Null -> its name, color, line style and marker."""


def draw_nulls(report: RankReport) -> dict[str, Figure]:
    """Mean spectra under the first advantage at the first, a middle and the last step; none where all are dead."""
    first = next((point.advantage for point in report.curve), None)
    points = [point for point in report.curve if point.advantage == first and point.profile]
    if not points:
        return {}
    size = max(point.group_size for point in points)
    points = [point for point in points if point.group_size == size]
    return {"rank_nulls": _figure(first_middle_last(points), centered=report.spectra[0].label.centered)}


def _figure(points: Sequence[RankCurvePoint], *, centered: bool) -> Figure:
    size = points[0].group_size
    names = [name_of(points[0].advantage), *(style[0] for style in STYLES.values())]
    figure, axes = new_figure(
        f"The mean spectrum of a group of {size}, and of its null models",
        f"share of each singular value in their sum, s_i / sum(s), rows {'centered' if centered else 'not centered'}; "
        "mean over live groups\nthe numbers are the mean effective ranks; below 0.0001 nothing is drawn",
        columns=len(points),
        height=3.8,
        width=7.6 if len(points) > 1 else 5.4,
        right=label_room(names),
        panel_titles=True,
    )
    for place, (panel, point) in enumerate(zip(axes, points, strict=True)):
        panel.set_yscale("log")
        panel.set_ylim(_FLOOR, 1.2)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(lambda share, _: f"{share:g}")
        panel.xaxis.set_major_locator(FixedLocator([1, *range(2, size + 1, max(1, size // 4))]))
        panel.set_xlabel("index")
        live = point.num_groups - point.num_dead
        panel.set_title(f"step {point.step}, {live} live", loc="left", fontsize=9, color=INK)
        _panel(panel, point, last=place == len(points) - 1)
        if place:
            panel.tick_params(labelleft=False)
    return figure


def _panel(axes: Axes, point: RankCurvePoint, *, last: bool) -> None:
    labels: list[tuple[float, str, str]] = []
    ranks: list[tuple[Estimate, str, str]] = []
    for name, null in reversed(tuple(point.nulls.items())):
        if null.profile:
            label, color, line, marker = STYLES[name]
            end = _line(axes, null.profile, color=color, linestyle=line, marker=marker, linewidth=1.2, markersize=3)
            labels.append((end, label, color))
            ranks.append((null.effective_rank, label, color))
    end = _line(axes, point.profile, color=BLUE, linestyle="-", marker="o", linewidth=1.8, markersize=4)
    name = name_of(point.advantage, limit=12)
    labels.append((end, name, BLUE))
    ranks.append((point.effective_rank, name, BLUE))
    if last:
        label_lines(axes, labels, gap=0.07)
    for place, (rank, name, color) in enumerate(reversed(ranks)):
        height = 0.04 + 0.062 * place
        axes.text(0.03, height, f"{rank.value:.2f} {name}", transform=axes.transAxes, color=color, fontsize=7.5)


def _line(axes: Axes, profile: Sequence[float], **style: Any) -> float:
    """Draws what is large enough to count, and returns where the line ends."""
    shown = [share for share in profile if share >= _FLOOR]
    axes.plot(range(1, len(shown) + 1), shown, **style)
    return shown[-1]

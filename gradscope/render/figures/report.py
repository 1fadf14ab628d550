"""The charts of a report as figures for slides: one a chart, with its finding as title."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradscope.render.figures import style
from gradscope.render.words import plain
from gradscope.results.report import Chart, RunIndex, RunReport, Series

COLORS = {
    "all_fail": style.SLATE,
    "all_pass": style.PALE,
    "tied": style.FAINT,
    "logged": style.MUTED,
    "recomputed": style.BLUE,
}
"""Colors that are the same in every figure, those of `gradscope degeneracy` and `gradscope replay`."""
_ON_COLOR = {style.PALE: style.BLUE, style.FAINT: style.MUTED}  # labels of pale areas
_LAYERS = (style.BLUE, style.PALE, style.FAINT)
_BAR = 0.24  # inches of a horizontal bar
_NAME = 0.078  # inches of a character of a bar's name
_MAX_ENDS = 3  # lines whose last values a title has room for


def draw_report(report: RunReport | RunIndex) -> dict[str, Figure]:
    """Every chart of a page: name of its section, and a number where that has several, -> figure.

    Of runs side by side likewise; none of an index of many.
    """
    return {
        f"{section.name}_{number}" if len(section.charts) > 1 else section.name: _draw(
            # the first sentence of a section is about the first of its charts
            chart,
            section.headline if number == 1 else "",
        )
        for section in report.sections
        for number, chart in enumerate(section.charts, start=1)
    }


def _draw(chart: Chart, finding: str) -> Figure:
    title, finding = style.name_of(f"{chart.title}{_ends(chart)}", limit=134), style.name_of(finding, limit=400)
    if chart.kind == "bars":
        names = [style.name_of(str(name), limit=22) for name in chart.places]
        left, height = 0.3 + _NAME * max(map(len, names)), 1.4 + _BAR * len(names)
        figure, (axes,) = style.new_figure(title, finding, height=height, left=left, right=0.5)
        style.draw_bars(axes, names, _heights(chart.series[0]), form=".2g")
        axes.axvline(0, color=style.MUTED, linewidth=0.8)
        axes.margins(x=0.12)
        axes.set_xlabel(plain(chart.x_label))
        return figure
    right = style.label_room([style.name_of(series.name) for series in chart.series])
    figure, (axes,) = style.new_figure(title, finding, height=4.0, left=0.88, right=right)
    if chart.kind == "lines":
        labels = _lines(axes, chart)
    else:
        layers = []
        for index, series in enumerate(chart.series):
            color = COLORS.get(series.kind or "", _LAYERS[index % len(_LAYERS)])
            layers.append((style.name_of(series.name), _heights(series), color, _ON_COLOR.get(color, color)))
        labels = style.draw_stack(axes, [float(step) for step in chart.places], layers)
    axes.set_xlabel(plain(chart.x_label))
    axes.set_ylabel(style.name_of(chart.y_label, limit=40))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_ylim(*(chart.y_range or axes.get_ylim()))  # final, as labels at the lines need it
    if len(chart.series) > 1 or chart.kind == "stack":
        style.label_lines(axes, labels)
    return figure


def _ends(chart: Chart) -> str:
    """A chart's finding, after its title: its longest and shortest bar, or where lines begin or end."""
    if chart.kind == "bars":
        ranked = sorted(zip(_heights(chart.series[0]), chart.places, strict=True), reverse=True)
        return ": " + ", ".join(f"{value:.2g} {name}" for value, name in (ranked[0], *ranked[1:][-1:]))
    columns = zip(*(series.values for series in chart.series), strict=True)
    complete = [column for column in columns if all(value is not None and math.isfinite(value) for value in column)]
    if not complete or len(chart.series) > _MAX_ENDS:
        return ""
    if len(chart.series) > 1 and chart.kind == "lines":
        ends = zip(complete[-1], chart.series, strict=True)
        return ": " + ", ".join(f"{value:.2g} {style.name_of(series.name)}" for value, series in ends)
    return ": " + " to ".join(f"{sum(value or 0.0 for value in column):.2g}" for column in (complete[0], complete[-1]))


def _lines(axes: Axes, chart: Chart) -> list[tuple[float, str, str]]:
    """Draws lines with a mark at the edge for each value that is not finite; their labels."""
    steps = [float(step) for step in chart.places]
    labels = []
    for index, series in enumerate(chart.series):
        color, line, marker = style.SERIES[index % len(style.SERIES)]
        color = COLORS.get(series.kind or "", color)
        values = [value if value is not None and math.isfinite(value) else math.nan for value in series.values]
        few = sum(not math.isnan(value) for value in values) <= 40
        axes.plot(steps, values, color=color, linestyle=line, marker=marker if few else "")
        finite = [value for value in values if not math.isnan(value)]
        if finite:
            labels.append((finite[-1], style.name_of(series.name), color))
    pairs = [pair for series in chart.series for pair in zip(chart.places, series.values, strict=True)]
    broken = [float(step) for step, value in pairs if value is not None and not math.isfinite(value)]
    if broken:
        across = axes.get_xaxis_transform()
        axes.plot(
            broken, [1.0] * len(broken), color=style.RED, linestyle="", marker="X", clip_on=False, transform=across
        )
    return labels


def _heights(series: Series) -> Sequence[float]:
    return [value or 0.0 for value in series.values]

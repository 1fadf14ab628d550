"""Pass rates over groups: the masses at 0 and 1 beside what lies between, and what coin flips would give."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.render.figures.style import BLUE, INK, ORANGE, PALE, SLATE, halo, label_lines, new_figure
from gradscope.results.degeneracy import DegeneracyReport


def draw_pass_rates(report: DegeneracyReport) -> Figure:
    """Bars of a report's histogram of pass rates, with the fitted and the i.i.d. distribution as lines."""
    shape = report.pass_rates
    fit = "" if shape.goodness_of_fit.value is None else f" (goodness of fit p = {shape.goodness_of_fit.value:.2g})"
    shapes = f"a = {shape.beta_a.value or 0:.3g}, b = {shape.beta_b.value or 0:.3g}"
    for rate, inflation in enumerate((shape.at_zero, shape.at_one)):
        shapes += f", {inflation.value:.2f} at {rate}" if inflation.value else ""
    figure, (axes,) = new_figure(
        "Pass rates of groups",
        f"share of groups by c/n; beta-binomial: {shapes}{fit}\n"
        f"binomial: independent rollouts with one pass rate, p = {report.pass_rate.value or 0:.3g}",
        right=1.4,
    )
    bars = shape.histogram
    places = list(range(len(bars)))
    colors = [SLATE, *([PALE] * (len(bars) - 2)), SLATE]
    axes.bar(places, [bar.observed for bar in bars], 0.8, color=colors, edgecolor="white", linewidth=0.4)
    for end in (0, len(bars) - 1):
        bar = bars[end]
        above = (end, max(bar.observed, bar.beta_binomial, bar.binomial))
        axes.annotate(
            f"{bar.observed:.2f}",
            above,
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=INK,
        )
    labels = []
    for name, color, line, marker, shares in (
        ("beta-binomial", BLUE, "-", "o", [bar.beta_binomial for bar in bars]),
        ("binomial", ORANGE, "--", "s", [bar.binomial for bar in bars]),
    ):
        axes.plot(
            places,
            shares,
            color=color,
            linestyle=line,
            marker=marker,
            linewidth=1.4,
            path_effects=halo(),
            zorder=3,
            clip_on=False,
        )
        labels.append((shares[-1], name, color))
    axes.set_ylim(0, 1.1 * max(max(bar.observed, bar.beta_binomial, bar.binomial) for bar in bars))
    axes.set_ylabel("share of groups")
    axes.set_xlabel("pass rate of the group")
    _name_bars(axes, report)
    label_lines(axes, labels)
    return figure


def _name_bars(axes: Axes, report: DegeneracyReport) -> None:
    """Exact rates where a bar holds one, else the edges between bars."""
    bars, size = report.pass_rates.histogram, report.group_size
    if size is not None and len(bars) == size + 1:
        shown = [place for place in range(len(bars)) if len(bars) <= 13 or place % 4 == 0 or place == len(bars) - 1]
        axes.set_xticks(shown, [f"{place}/{size}" for place in shown])
        return
    edges = [place for place in range(1, len(bars) - 1) if len(bars) <= 13 or place % 4 == 1]
    names = [(0.0, "0"), *((place - 0.5, f"{bars[place].low:.2g}") for place in edges if bars[place].low > 0)]
    axes.set_xticks(*zip(*[*names, (len(bars) - 1.0, "1")], strict=True))

"""Dead groups as figures: shares over steps and by group size, and pass rates against those of coin flips."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.render.figures import style
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.say import percent

_MAX_WHISKERS = 24


def draw_degeneracy(report: DegeneracyReport) -> dict[str, Figure]:
    """Dead groups over steps and by group size, where there are several, and pass rates where they are known."""
    figures: dict[str, Figure] = {}
    if len(report.by_step) > 1:
        figures["degeneracy"] = _over_steps(report)
    if len(report.by_group_size) > 1:
        figures["degeneracy_by_group_size"] = _by_group_size(report)
    if report.pass_rates.histogram:
        figures["pass_rates"] = draw_pass_rates(report)
    return figures


def _prediction(origin: str) -> str:
    """The formula of the prediction and its p, which is not the same in every figure."""
    return f"i.i.d. prediction = {metric('iid_prediction').formula}, p: {origin}"


def _over_steps(report: DegeneracyReport) -> Figure:
    dead = report.frac_reward_zero_std.value
    has_whiskers = len(report.by_step) <= _MAX_WHISKERS and report.frac_reward_zero_std.interval is not None
    whiskers = "; whiskers: 95 %, all kinds together" * has_whiskers
    predicted = [row for row in report.by_step if row.iid_prediction.value is not None]
    prediction = _prediction(report.course_pass_rate_origin) if predicted else ""
    figure, (axes,) = style.new_figure(
        "Groups without a gradient" if dead is None else f"{percent(dead)} of groups gave no gradient",
        f"{metric('frac_reward_zero_std').formula}{whiskers}\n{prediction}".rstrip(),
        right=1.4,
    )
    steps = report.by_step
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of groups")
    axes.set_xlabel("step" if all(row.step == row.last_step for row in steps) else "first step of each window")
    style.tick_steps(axes, [row.step for row in steps], max_ticks=12)
    kinds = (
        ("all fail", style.SLATE, style.SLATE, [row.frac_all_fail for row in steps]),
        ("all pass", style.PALE, style.BLUE, [row.frac_all_pass for row in steps]),
        ("tied", style.FAINT, style.MUTED, [row.frac_tied for row in steps]),
    )
    layers = [(name, [share.value or 0.0 for share in shares], color, text) for name, color, text, shares in kinds]
    of_all = ("no gradient", [row.frac_reward_zero_std.value or 0.0 for row in steps], style.PALE, style.BLUE)
    layers = [layer for layer in layers if any(layer[1])] or [of_all]  # metrics alone do not have the kinds
    labels = style.draw_stack(axes, [row.step for row in steps], layers)
    for row in steps if whiskers else ():
        if row.frac_reward_zero_std.interval is not None:
            axes.plot([row.step] * 2, row.frac_reward_zero_std.interval, color=style.INK, linewidth=0.8, alpha=0.4)
    if predicted:
        values = [row.iid_prediction.value or 0.0 for row in predicted]
        axes.plot(
            [row.step for row in predicted], values, color=style.ORANGE, linestyle="--", path_effects=style.halo()
        )
        labels.append((values[-1], "i.i.d. prediction", style.ORANGE))
    style.label_lines(axes, labels)
    return figure


def _by_group_size(report: DegeneracyReport) -> Figure:
    rows = sorted(report.by_group_size, key=lambda row: row.group_size)
    title = "Groups without a gradient, by group size"
    if defined := [row for row in rows if row.degeneracy.value is not None]:
        ends = [
            f"{percent(row.degeneracy.value or 0.0)} of groups of {row.group_size}" for row in (defined[0], defined[-1])
        ]
        title = f"{', '.join(dict.fromkeys(ends))} give no gradient"
    figure, (axes,) = style.new_figure(
        title, f"{metric('degeneracy').formula}, with 95 % intervals\n{_prediction(report.pass_rate_origin)}", right=1.4
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of groups")
    axes.set_xlabel("group size G")
    style.tick_at(axes.xaxis, [row.group_size for row in rows])
    labels = []
    for name, color, line, marker, estimates in (
        ("observed", style.BLUE, "-", "o", [row.degeneracy for row in rows]),
        ("i.i.d. prediction", style.ORANGE, "--", "s", [row.iid_prediction for row in rows]),
    ):
        points = zip([row.group_size for row in rows], estimates, strict=True)
        labels += style.draw_course(
            axes, name, points, color=color, linestyle=line, marker=marker, zorder=3, clip_on=False
        )
    beyond = [(row.group_size, row.degeneracy.value) for row in rows if row.method == "forecast"]
    hollow = [(size, value) for size, value in beyond if value is not None]
    if hollow:
        axes.plot(
            *zip(*hollow, strict=True), linestyle="", marker="o", color=style.BLUE, markerfacecolor="white", zorder=4
        )
        labels[0] = (labels[0][0], "observed\n(hollow: forecast)", style.BLUE)
    axes.axhline(0, color=style.FAINT, linewidth=0.6)
    style.label_lines(axes, labels)
    return figure


def draw_pass_rates(report: DegeneracyReport) -> Figure:
    """Bars of a report's histogram of pass rates, with the fitted and the i.i.d. distribution as lines."""
    shape, bars = report.pass_rates, report.pass_rates.histogram
    fit = "" if shape.goodness_of_fit.value is None else f" (goodness of fit p = {shape.goodness_of_fit.value:.2g})"
    shapes = f"a = {shape.beta_a.value or 0:.3g}, b = {shape.beta_b.value or 0:.3g}"
    for rate, inflation in enumerate((shape.at_zero, shape.at_one)):
        shapes += f", {inflation.value:.2f} at {rate}" if inflation.value else ""
    figure, (axes,) = style.new_figure(
        f"{percent(bars[0].observed)} of groups always fail, {percent(bars[-1].observed)} always pass",
        f"share of groups by c/n; beta-binomial: {shapes}{fit}\n"
        f"binomial: independent rollouts with one pass rate, p = {report.pass_rate.value or 0:.3g}",
        right=1.4,
    )
    positions = list(range(len(bars)))
    colors = [style.SLATE, *([style.PALE] * (len(bars) - 2)), style.SLATE]
    axes.bar(positions, [bar.observed for bar in bars], 0.8, color=colors, edgecolor="white", linewidth=0.4)
    for end in (0, len(bars) - 1):
        bar = bars[end]
        above = (end, max(bar.observed, bar.beta_binomial, bar.binomial))
        text: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": style.INK}
        axes.annotate(f"{bar.observed:.2f}", above, xytext=(0, 5), textcoords="offset points", **text)
    labels = []
    for name, color, line, marker, shares in (
        ("beta-binomial", style.BLUE, "-", "o", [bar.beta_binomial for bar in bars]),
        ("binomial", style.ORANGE, "--", "s", [bar.binomial for bar in bars]),
    ):
        drawn: dict[str, Any] = {"linewidth": 1.4, "path_effects": style.halo(), "zorder": 3, "clip_on": False}
        axes.plot(positions, shares, color=color, linestyle=line, marker=marker, **drawn)
        labels.append((shares[-1], name, color))
    axes.set_ylim(0, 1.1 * max(max(bar.observed, bar.beta_binomial, bar.binomial) for bar in bars))
    axes.set_ylabel("share of groups")
    axes.set_xlabel("pass rate of the group")
    _name_bars(axes, report)
    style.label_lines(axes, labels)
    return figure


def _name_bars(axes: Axes, report: DegeneracyReport) -> None:
    """Exact rates where a bar holds one, else the edges between bars."""
    bars, size = report.pass_rates.histogram, report.group_size
    if size is not None and len(bars) == size + 1:
        shown = [bar for bar in range(len(bars)) if len(bars) <= 13 or bar % 4 == 0 or bar == len(bars) - 1]
        axes.set_xticks(shown, [f"{bar}/{size}" for bar in shown])
        return
    edges = [bar for bar in range(1, len(bars) - 1) if len(bars) <= 13 or bar % 4 == 1]
    names = [(0.0, "0"), *((bar - 0.5, f"{bars[bar].low:.2g}") for bar in edges if bars[bar].low > 0)]
    axes.set_xticks(*zip(*[*names, (len(bars) - 1.0, "1")], strict=True))

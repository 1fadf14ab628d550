"""Gradient norms over steps: logged and replayed, and the step that stands out."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gradscope.catalog.lookup import metric
from gradscope.render.figures import style
from gradscope.results.norms import ReplayReport, SpikeReport

_FLOOR = 1e-16  # where an error of exactly zero is drawn on a logarithmic axis


def draw_replay(report: ReplayReport) -> dict[str, Figure]:
    """Logged and recomputed gradient norms, and their errors; none where no gradient norm was logged."""
    if not any("grad_norm" in step.logged for step in report.steps):
        return {}
    errors = {step.step: error for step in report.steps if (error := step.relative_error.get("grad_norm")) is not None}
    num_matches = sum(error <= report.tolerance for error in errors.values())
    figure, (above, below) = style.new_figure(
        f"The recomputed gradient norm matches at {num_matches} of {len(errors)} steps",
        f"{metric('grad_norm').formula}; error = |recomputed - logged| / |logged|\n"
        f"{len(errors)} of {len(report.steps)} steps could be recomputed",
        height=4.8,
        right=1.25,
        panels=style.Panels(heights=(1.7, 1), gap=0.16),
    )
    _norms(above, report)
    below.set_yscale("log")
    below.set_ylabel("relative error")
    drawn = [max(error, _FLOOR) for error in errors.values()] + [report.tolerance]
    below.set_ylim(min(drawn) / 10, max(drawn) * 10)
    below.axhline(report.tolerance, color=style.ORANGE, linestyle="--", linewidth=1.0)
    for step, error in errors.items():
        color, marker = (style.BLUE, "o") if error <= report.tolerance else (style.RED, "X")
        below.plot([step], [max(error, _FLOOR)], color=color, marker=marker, linestyle="")
    below.yaxis.set_major_formatter(style.power_of_ten)
    below.yaxis.set_minor_locator(NullLocator())
    style.label_lines(below, [(report.tolerance, f"tolerance {report.tolerance:g}", style.ORANGE)])
    below.set_xlabel("step")
    style.tick_steps(below, [step.step for step in report.steps], max_ticks=12)
    return {"replay": figure}


def _norms(axes: Axes, report: ReplayReport) -> None:
    logged = [(step.step, step.logged["grad_norm"]) for step in report.steps if "grad_norm" in step.logged]
    recomputed = [(step.step, step.recomputed["grad_norm"]) for step in report.steps if "grad_norm" in step.recomputed]
    drawn = [(step, value if math.isfinite(value) else math.nan) for step, value in logged]
    axes.plot(
        *zip(*drawn, strict=True), color=style.MUTED, linewidth=1.0, marker="o", markersize=7, markerfacecolor="white"
    )
    finite = [value for _, value in logged if math.isfinite(value)]
    labels = [(finite[-1], "logged", style.MUTED)] if finite else []
    if recomputed:
        axes.plot(*zip(*recomputed, strict=True), color=style.BLUE, linestyle="", marker="o", markersize=3.6)
        labels.append((recomputed[-1][1], "recomputed", style.BLUE))
    top = 1.12 * max(finite + [value for _, value in recomputed], default=0.0) or 1.0
    axes.set_ylim(0, top)
    broken = [step for step, value in logged if not math.isfinite(value)]
    if broken:
        axes.plot(broken, [top] * len(broken), color=style.RED, linestyle="", marker="X", clip_on=False)
        labels.append((top, "logged as NaN or infinity", style.RED))
    axes.set_ylabel("grad_norm")
    style.label_lines(axes, labels, gap=0.09)


def draw_spike(report: SpikeReport) -> dict[str, Figure]:
    """The course, and the norm after each removal; none where nothing was logged."""
    if not report.course:
        return {}
    first = report.metrics[0] if report.metrics else None
    name, typical = ("logged", None) if first is None else (first.name, first.typical.value)
    finding = f"Step {report.step}: {name} against the other steps"
    if first is not None and first.value.value is not None and typical is not None:
        finding = f"{name} is {first.value.value:.3g} at step {report.step}, and {typical:.3g} around it"
    figure, (above, *below) = style.new_figure(
        finding,
        "median of the up to 50 steps around it; below, what is left of the norm without its worst rollouts",
        height=4.8 if report.removals else 2.8,
        right=1.25,
        panels=style.Panels(heights=(1, 1) if report.removals else (1,), gap=0.5, share_x=False),
    )
    steps, values = list(report.course), list(report.course.values())
    above.plot(steps, values, color=style.MUTED, linewidth=1.0, marker="o", markersize=3)
    labels = []
    if typical is not None:
        above.axhline(typical, color=style.BLUE, linewidth=1.0)
        labels.append((typical, "median around it", style.BLUE))
    if report.step in report.course:
        above.plot([report.step], [report.course[report.step]], color=style.RED, marker="o", linestyle="")
        labels.append((report.course[report.step], f"step {report.step}", style.RED))
    above.set_ylabel(name)
    above.set_xlabel("step")
    style.tick_steps(above, steps, max_ticks=12)
    style.label_lines(above, labels, gap=0.12)
    for panel in below:
        counts = [0, *(removal.num_removed for removal in report.removals)]
        norms = [report.grad_norm.value or 0.0, *(removal.grad_norm for removal in report.removals)]
        panel.plot(counts, norms, color=style.ORANGE, marker="o", markersize=4)
        panel.set_ylim(0, 1.12 * max(norms))
        panel.set_xlabel(f"rollouts left out, of {len(report.rollouts)}")
        panel.set_ylabel("grad_norm")
        style.tick_steps(panel, counts, max_ticks=12)
        style.label_lines(panel, [(norms[-1], "what is left", style.ORANGE)])
    return {"spike": figure}

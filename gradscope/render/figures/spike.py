"""A step that stands out as a figure: the logged course with the step in it, and what is left without its rollouts."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.render.figures.style import BLUE, MUTED, ORANGE, RED, label_lines, new_figure, tick_steps
from gradscope.results.spike import SpikeReport


def draw_spike(report: SpikeReport) -> dict[str, Figure]:
    """The course, and the norm after each removal; none where nothing was logged."""
    if not report.course:
        return {}
    name = report.metrics[0].name if report.metrics else "logged"
    figure, axes = new_figure(
        f"Step {report.step}: {name} beside the other steps",
        "median of the up to 50 steps around it; below, what is left of the norm without its worst rollouts",
        height=4.8 if report.removals else 2.8,
        rows=2 if report.removals else 1,
        hspace=0.5,
        right=1.25,
        share_x=False,
    )
    above, *below = axes
    _course(above, report, name)
    for one in below:
        _left(one, report)
    return {"spike": figure}


def _course(axes: Axes, report: SpikeReport, name: str) -> None:
    steps, values = list(report.course), list(report.course.values())
    axes.plot(steps, values, color=MUTED, linewidth=1.0, marker="o", markersize=3)
    labels = []
    if report.metrics and report.metrics[0].typical.value is not None:
        typical = report.metrics[0].typical.value
        axes.axhline(typical, color=BLUE, linewidth=1.0)
        labels.append((typical, "median around it", BLUE))
    if report.step in report.course:
        axes.plot([report.step], [report.course[report.step]], color=RED, marker="o", linestyle="")
        labels.append((report.course[report.step], f"step {report.step}", RED))
    axes.set_ylabel(name)
    axes.set_xlabel("step")
    tick_steps(axes, steps, most=12)
    label_lines(axes, labels, gap=0.12)


def _left(axes: Axes, report: SpikeReport) -> None:
    whole = report.grad_norm.value or 0.0
    counts = [0, *(one.num_removed for one in report.removals)]
    norms = [whole, *(one.grad_norm for one in report.removals)]
    axes.plot(counts, norms, color=ORANGE, marker="o", markersize=4)
    axes.set_ylim(0, 1.12 * max(norms))
    axes.set_xlabel(f"rollouts left out, of {len(report.rollouts)}")
    axes.set_ylabel("grad_norm")
    tick_steps(axes, counts, most=12)
    label_lines(axes, [(norms[-1], "what is left", ORANGE)])

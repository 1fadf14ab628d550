"""Sparsity over training as a figure: of rollouts, and of tokens or of the entries of weights."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.estimate import Estimate
from gradscope.render.figures.style import SERIES, label_lines, label_room, new_figure, tick_steps
from gradscope.results.rank import RankReport
from gradscope.results.ranks.tokens import GradientSparsity

_LINES = ("zero", "below 1 %", "Hoyer", "Gini")
_Course = Sequence[tuple[int, Sequence[float | None]]]


def draw_sparsity(report: RankReport) -> dict[str, Figure]:
    """Four definitions over steps; none where fewer than two steps have a gradient under the logged advantage."""
    panels = {"rollouts": _of_rollouts(report)}
    if report.sparsity:
        tokens = report.sparsity[0].parts == "tokens"
        panels["tokens" if tokens else "entries of dL/dW, mean over weights"] = _below(report.sparsity)
    panels = {name: course for name, course in panels.items() if len(course) > 1}
    return {"rank_sparsity": _figure(panels)} if panels else {}


def _of_rollouts(report: RankReport) -> _Course:
    names = ("zero_rows", "small_rows", "hoyer", "gini")
    none = Estimate.undefined_because("not measured")
    return [(step.step, [step.sparsity.get(name, none).value for name in names]) for step in report.steps]


def _below(sparsities: Sequence[GradientSparsity]) -> _Course:
    """Tokens have one line a step; weights are averaged."""
    course = []
    for step in sorted({one.step for one in sparsities}):
        of_step = [one for one in sparsities if one.step == step]
        table = [[e.value for e in (one.zero, one.small, one.hoyer, one.gini)] for one in of_step]
        course.append((step, [_mean(column) for column in zip(*table, strict=True)]))
    return course


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def _figure(panels: dict[str, _Course]) -> Figure:
    figure, axes = new_figure(
        "Sparsity of the gradient over training",
        "share of parts that are zero, and that are below 1 % of the largest; Hoyer and Gini: 0 for parts of equal "
        "size, towards 1 where a single one is everything",
        columns=len(panels),
        height=3.9,
        width=7.6 if len(panels) > 1 else 5.8,
        right=label_room(_LINES),
        panel_titles=True,
    )
    for place, (panel, (name, course)) in enumerate(zip(axes, panels.items(), strict=True)):
        panel.set_title(name, loc="left", fontsize=9)
        panel.set_ylim(-0.02, 1.02)
        panel.set_xlabel("step")
        tick_steps(panel, [step for step, _ in course], most=6)
        _lines(panel, course, last=place == len(panels) - 1)
        if place:
            panel.tick_params(labelleft=False)
    return figure


def _lines(axes: Axes, course: _Course, *, last: bool) -> None:
    labels = []
    for place, (name, (color, line, marker)) in enumerate(zip(_LINES, SERIES, strict=True)):
        points = [(step, value) for step, values in course if (value := values[place]) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, linestyle=line, marker=marker)
            labels.append((points[-1][1], name, color))
    if last:
        label_lines(axes, labels, gap=0.08)

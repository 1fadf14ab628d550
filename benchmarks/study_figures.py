"""Figures of the studies: courses over the steps, and the difference of every pair of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from study import Judged, Runs

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.metrics.uncertainty.paired import student_mean
from gradscope.render.figures.style import BLUE, INK, MUTED, SERIES, figure_style, label_room, new_figure, save_figure

_WINDOWS = 20
"""Points of a curve over the steps."""
_SERIES: Mapping[str, Callable[[ComparedRun], NDArray[np.float64]]] = {
    "dead groups": lambda run: run.degenerate,
    "reward": lambda run: run.reward,
}


def draw(runs: Runs, folder: Path) -> None:
    """The figures of a study."""
    _draw_differences(runs, folder / f"{runs.study.name}_differences", metrics=runs.study.drawn)
    arms = [arm for arm in runs.study.drawn_over_steps if arm in runs.study.arms]
    if runs.by_cell and arms:
        _draw_steps(runs, folder / f"{runs.study.name}_steps", arms=arms, series=list(_SERIES))


def _draw_steps(runs: Runs, stem: Path, *, arms: Sequence[str], series: Sequence[str]) -> None:
    """Quantities over the steps of training: a panel for each, a line for each arm."""
    with figure_style():
        figure, panels = new_figure(
            f"{' and '.join(series).capitalize()} over the steps",
            f"Mean over {len(runs.study.seeds)} seeds with Student's 95 % interval",
            width=8.4,
            height=3.1,
            columns=len(series),
            right=0.25,
            panel_titles=True,
        )
        for axes, name in zip(panels, series, strict=True):
            axes.set_title(name, loc="left", fontsize=9)
            axes.set_xlabel("step")
            for arm, (color, line, _) in zip(arms, SERIES, strict=False):
                steps, table = _course(runs.runs(arm), _SERIES[name])
                means = [student_mean(column) for column in table.T]
                axes.plot(steps, table.mean(axis=0), color=color, linestyle=line, label=arm)
                low, high = zip(*((mean.low or mean.value, mean.high or mean.value) for mean in means), strict=True)
                axes.fill_between(steps, low, high, color=color, alpha=0.12, linewidth=0)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="upper right", ncols=len(arms), frameon=False, fontsize=8.5
        )
        save_figure(figure, stem)


def _course(
    runs: Sequence[ComparedRun], of: Callable[[ComparedRun], NDArray[np.float64]]
) -> tuple[list[float], NDArray[np.float64]]:
    """Steps, [W], and means of windows of them by run, [n, W]."""
    windows = np.array_split(np.arange(len(runs[0].reward)), min(_WINDOWS, len(runs[0].reward)))
    return [float(window.mean()) + 1 for window in windows], np.array(
        [[of(run)[window].mean() for window in windows] for run in runs]
    )


def _draw_differences(runs: Runs, stem: Path, *, metrics: Sequence[str]) -> None:
    """Arms against others: a panel for each number, a row for each pair of arms, a dot for each pair of runs."""
    rows = list(runs.study.against.items())
    labels = [f"{arm} - {other}" for arm, other in rows]
    margins = "; shaded: the margin of an equivalence" if any(one.claim.margin for one in runs.judged) else ""
    judged = {(one.claim.arm, one.claim.baseline, one.claim.metric): one for one in runs.judged}
    with figure_style():
        figure, panels = new_figure(
            "Each arm minus its baseline",
            f"A dot a pair of runs ({len(runs.study.seeds)} seeds), means with Student's 95 % interval. Blue: a test "
            f"of the plan, filled where it decides{margins}",
            width=8.4,
            height=1.5 + 0.36 * len(rows),
            columns=len(metrics),
            right=label_room(labels),
            panel_titles=True,
            share_x=False,
        )
        for axes, metric in zip(panels, metrics, strict=True):
            axes.set_title(metric, loc="left", fontsize=9)
            axes.axvline(0, color=MUTED, linewidth=0.8)
            axes.grid(visible=False)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_ylim(len(rows) - 0.4, -0.6)
            for row, (arm, other) in enumerate(rows):
                _row(axes, row, runs.changes(arm, other, metric), judged.get((arm, other, metric)))
        for row, label in enumerate(labels):
            panels[-1].text(1.05, row, label, transform=panels[-1].get_yaxis_transform(), fontsize=8, va="center")
        save_figure(figure, stem)


def _row(axes: Axes, row: int, changes: NDArray[np.float64], judged: Judged | None) -> None:
    if not len(changes):
        return
    mean, color = student_mean(changes), INK if judged is None else BLUE
    if judged is not None and judged.claim.margin is not None:
        axes.fill_betweenx([row - 0.4, row + 0.4], -judged.claim.margin, judged.claim.margin, color=BLUE, alpha=0.1)
    axes.plot(changes, np.full(len(changes), row + 0.2), "o", color=MUTED, markersize=2.5, alpha=0.6, linewidth=0)
    if mean.low is not None:
        axes.plot([mean.low, mean.high], [row - 0.12, row - 0.12], color=color, linewidth=1.4)
    is_decided = judged is not None and judged.verdict != "not decided"
    axes.plot([mean.value], [row - 0.12], color=color, marker="o", markerfacecolor=color if is_decided else "white")

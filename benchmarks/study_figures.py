"""Figures of the studies: a panel for each block, a line for each arm, means over seeds with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from study import Difference, Results

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.render.figures.save import save_figure
from gradscope.render.figures.style import BLUE, MUTED, SERIES, figure_style, label_room, new_figure

_COLUMNS = 3
_PANEL = 1.75
"""Inches of a row of panels."""
_WINDOWS = 10
"""Points of a curve over the steps."""
_SERIES: Mapping[str, Callable[[ComparedRun], np.ndarray]] = {
    "dead groups": lambda run: run.degenerate,
    "reward": lambda run: run.reward,
}


def draw_steps(results: Results, stem: Path, *, series: str, condition: str) -> None:
    """A quantity over the steps of training."""

    def draw(axes: Axes, block: str, arm: str, look: tuple[str, str, str]) -> None:
        runs = results.runs((block, condition), arm)
        windows = np.array_split(np.arange(len(runs[0].reward)), min(_WINDOWS, len(runs[0].reward)))
        table = np.array([[_SERIES[series](run)[window].mean() for window in windows] for run in runs])
        steps = [float(window.mean()) + 1 for window in windows]
        axes.plot(steps, table.mean(axis=0), color=look[0], linestyle=look[1])
        axes.fill_between(steps, table.min(axis=0), table.max(axis=0), color=look[0], alpha=0.12, linewidth=0)

    with figure_style():
        figure = _panels(
            results,
            f"{series.capitalize()} over the steps, learning rate {condition}",
            f"Mean over {len(results.study.seeds)} seeds; bands from the lowest to the highest seed",
            draw,
        )
        _save(figure, stem, x="step", y=series)


def draw_rates(results: Results, stem: Path, *, metric: str, rates: Mapping[str, float]) -> None:
    """A metric after training by learning rate."""

    def draw(axes: Axes, block: str, arm: str, look: tuple[str, str, str]) -> None:
        means = [results.mean((block, condition), arm, metric) for condition in rates]
        values = [mean.value for mean in means]
        low = [mean.value if mean.low is None else mean.low for mean in means]
        high = [mean.value if mean.high is None else mean.high for mean in means]
        axes.plot(list(rates.values()), values, color=look[0], linestyle=look[1], marker=look[2])
        axes.fill_between(list(rates.values()), low, high, color=look[0], alpha=0.12, linewidth=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(rates.values())))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-"))

    with figure_style():
        figure = _panels(
            results,
            f"{metric.capitalize()} by learning rate",
            f"Mean over {len(results.study.seeds)} seeds; bands: Student's 95 % interval",
            draw,
        )
        _save(figure, stem, x="learning rate", y=metric)


def draw_forest(results: Results, stem: Path, *, arms: Sequence[str], metrics: Sequence[str]) -> None:
    """Arms against the baseline: a column for each metric, a row for each arm, block and condition."""
    baseline, *_ = results.study.arms
    rows = [(place, arm) for arm in arms for place in results.study.places if arm in results.study.arms_of(place[0])]
    labels = [", ".join([*([arm] if len(arms) > 1 else []), *place]) for place, arm in rows]
    with figure_style():
        figure, panels = new_figure(
            f"{arms[0] if len(arms) == 1 else 'Each arm'} minus {baseline}",
            f"Paired difference over {len(results.study.seeds)} seeds with Student's 95 % interval; filled: below 0.05 "
            "after Holm's correction for all tests of the study",
            width=8.4,
            height=1.5 + 0.17 * len(rows),
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
            axes.set_ylim(len(rows) - 0.4, -0.6)
            for height, (place, arm) in enumerate(rows):
                _whisker(axes, height, results.difference(place, arm, metric))
        for height, label in enumerate(labels):
            panels[-1].text(1.05, height, label, transform=panels[-1].get_yaxis_transform(), fontsize=7.5, va="center")
        save_figure(figure, stem)


def _whisker(axes: Axes, row: int, difference: Difference) -> None:
    estimate = difference.estimate
    if estimate.value is None:
        return
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [row, row], color=BLUE, linewidth=1.3)
    axes.plot([estimate.value], [row], color=BLUE, marker="o", markerfacecolor=BLUE if difference.decided else "white")


def _panels(
    results: Results, title: str, subtitle: str, draw: Callable[[Axes, str, str, tuple[str, str, str]], None]
) -> Figure:
    blocks = list(results.study.blocks)
    columns = min(_COLUMNS, len(blocks))
    rows = -(-len(blocks) // columns)
    figure, panels = new_figure(
        title,
        subtitle,
        width=8.4 if columns > 1 else 7.2,
        height=1.35 + _PANEL * rows,
        rows=rows,
        columns=columns,
        right=0.25,
        hspace=0.3,
        panel_titles=True,
    )
    for axes in panels[len(blocks) :]:
        axes.set_visible(False)
    for axes, block in zip(panels, blocks, strict=False):
        axes.set_title(block, loc="left", fontsize=9)
        for arm, look in zip(results.study.arms, SERIES, strict=False):
            if arm in results.study.arms_of(block):
                draw(axes, block, arm, look)
    handles = [
        figure.axes[0].plot([], [], color=color, linestyle=line, label=arm)[0]
        for arm, (color, line, _) in zip(results.study.arms, SERIES, strict=False)
    ]
    figure.legend(handles=handles, loc="upper right", ncols=len(handles), frameon=False, fontsize=8.5)
    return figure


def _save(figure: Figure, stem: Path, *, x: str, y: str) -> None:
    shown = [axes for axes in figure.axes if axes.get_visible()]
    for place, axes in enumerate(shown):
        if place % min(_COLUMNS, len(shown)) == 0:
            axes.set_ylabel(y)
        if place >= len(shown) - min(_COLUMNS, len(shown)):
            axes.set_xlabel(x)
    save_figure(figure, stem)

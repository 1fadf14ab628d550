"""Effective rank as a figure: the curve over checkpoints. Letters: G group size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.render.figures.rank.formulations import draw_updates
from gradscope.render.figures.rank.group_sizes import draw_sizes, draw_weight_sizes
from gradscope.render.figures.rank.layers import draw_layers
from gradscope.render.figures.rank.null_models import draw_nulls
from gradscope.render.figures.rank.sparsity import draw_sparsity
from gradscope.render.figures.rank.spectrum import draw_spectra
from gradscope.render.figures.rank.weight_updates import draw_gradients_and_updates, draw_weight_updates
from gradscope.render.figures.style import INK, SERIES, label_lines, name_of, new_figure, tick_at, tick_steps
from gradscope.render.words.merge_equal_curves import merge_same
from gradscope.results.rank import RankReport
from gradscope.results.ranks.curves import RankCurvePoint

_MOST_PANELS = 12


def draw_rank(report: RankReport) -> dict[str, Figure]:
    """Ranks over checkpoints and against G, spectra beside nulls, updates, sparsity; for weights the layers."""
    if report.rows == "weight":
        figures = draw_weight_sizes(report) | draw_layers(report) | draw_sparsity(report)
        return figures | draw_gradients_and_updates(report.gradient_updates)
    if report.rows == "update":
        return draw_weight_updates(report)
    figures = {"rank_curve": _curve(report)} if report.curve else {}
    figures |= draw_sizes(report) | draw_nulls(report) | draw_spectra(report)
    return figures | draw_updates(report) | draw_sparsity(report)


def _curve(report: RankReport) -> Figure:
    """One panel per formulation, one line per group size: the same rollouts under each advantage."""
    panels = merge_same(report.curve)
    shown = panels[:_MOST_PANELS]
    columns = len(shown) if len(shown) <= 3 else min(4, math.ceil(math.sqrt(len(shown))))
    rows = -(-len(shown) // columns)
    centered = "centered" if report.spectra and report.spectra[0].label.centered else "not centered"
    figure, axes = new_figure(
        "Directions that a group's gradients span",
        f"effective rank = {metric('effective_rank').formula}, rows {centered}\n"
        "mean over live groups with 95 % interval; dotted: the ceiling, G; thin: scores without advantages"
        f"{_panels_left(len(panels))}",
        width=4.6 if columns == 1 else 7.6,
        height=1.6 + 1.9 * rows,
        rows=rows,
        columns=columns,
        right=0.75,
        hspace=0.42,
        panel_titles=True,
    )
    sizes = sorted({point.group_size for point in report.curve})
    steps = sorted({point.step for point in report.curve})
    for place, panel in enumerate(axes):
        if place >= len(shown):
            panel.set_visible(False)
            continue
        names, points = shown[place]
        _panel(panel, points, sizes, steps, last=place % columns == columns - 1 or place == len(shown) - 1)
        panel.set_title(_title(names), loc="left", fontsize=9 if len(names) == 1 else 7.5, color=INK)
        if place % columns:
            panel.tick_params(labelleft=False)
        if place + columns >= len(shown):
            panel.set_xlabel("step")
            panel.tick_params(labelbottom=True)
    return figure


def _title(names: Sequence[str]) -> str:
    """All formulations of a panel, in lines of about its width."""
    return "\n".join(textwrap.wrap(", ".join(name_of(name) for name in names), 28, break_long_words=False))


def _panels_left(num_panels: int) -> str:
    more = num_panels - _MOST_PANELS
    return f"; {more} more advantages are in the tables" if more > 0 else ""


def _panel(
    axes: Axes, points: Sequence[RankCurvePoint], sizes: Sequence[int], steps: Sequence[int], *, last: bool
) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.93, max(sizes) * 1.1)
    tick_at(axes.yaxis, [1, *sizes])
    tick_steps(axes, steps, most=6)
    margin = 0.05 * (steps[-1] - steps[0]) or 0.5
    axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    labels = []
    for size, (color, line, marker) in zip(sizes, SERIES, strict=False):
        axes.axhline(size, color=color, linewidth=0.7, linestyle=":", alpha=0.6)
        ranks = [
            (p.step, p.effective_rank) for p in points if p.group_size == size and p.effective_rank.value is not None
        ]
        if not ranks:
            continue
        places, values = [step for step, _ in ranks], [e.value or 0.0 for _, e in ranks]
        axes.plot(places, values, color=color, linestyle=line, marker=marker)
        lows, highs = zip(*(rank.ends for _, rank in ranks), strict=True)
        axes.fill_between(places, lows, highs, color=color, alpha=0.15, linewidth=0)
        alone = {p.step: p.nulls["unweighted"].effective_rank.value for p in points if p.group_size == size and p.nulls}
        axes.plot(list(alone), [rank or 0.0 for rank in alone.values()], color=color, linewidth=0.8, alpha=0.8)
        labels.append((values[-1], f"G = {size}", color))
    if last:
        label_lines(axes, labels, gap=0.1)

"""Ranks as figures: over checkpoints and against the group size; and updates of formulations. Letters: G group size."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradscope.catalog.lookup import metric
from gradscope.estimate import Estimate
from gradscope.render.figures.rank_spectra import (
    STYLES,
    draw_gradients_and_updates,
    draw_layers,
    draw_nulls,
    draw_spectra,
    draw_weight_updates,
)
from gradscope.render.figures.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    ON_COLOR,
    ORANGE,
    SERIES,
    clear_frame,
    first_middle_last,
    label_lines,
    label_room,
    name_of,
    new_figure,
    tick_at,
    tick_steps,
)
from gradscope.render.views.rank import merge_same
from gradscope.results.rank import FormulationUpdate, GroupShare, RankReport
from gradscope.results.ranks.curves import RankCurvePoint, WeightRankPoint
from gradscope.results.ranks.tokens import GradientSparsity

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


_NULLS = ("unweighted", "shuffled", "gaussian")
_Point = RankCurvePoint | WeightRankPoint
_Chosen = TypeVar("_Chosen", bound=RankCurvePoint | WeightRankPoint)
_Known = Sequence[tuple[int, Estimate]]


def draw_sizes(report: RankReport) -> dict[str, Figure]:
    """Ranks against G of the first formulation with several G, at the first, a middle and the last step, if any."""
    points = _of_several_sizes(report.curve)
    steps = first_middle_last(sorted({point.step for point in points}))
    return {"rank_sizes": _sizes(points, steps, "Effective rank against the number of rollouts", ())} if points else {}


def draw_weight_sizes(report: RankReport) -> dict[str, Figure]:
    """The rank of dL/dW of one group against G: each weight, their mean, and its nulls, likewise."""
    points = _of_several_sizes([point for point in report.weight_curve if point.tensor is None])
    steps = first_middle_last(sorted({point.step for point in points}))
    if not points:
        return {}
    weights = [p for p in report.weight_curve if p.tensor is not None and p.advantage == points[0].advantage]
    return {"rank_weight_sizes": _sizes(points, steps, "Effective rank of dL/dW of one group", weights)}


def _of_several_sizes(points: Sequence[_Point]) -> list[_Point]:
    """Those of the first formulation with several group sizes."""
    ranked = [point for point in points if point.effective_rank.value is not None]
    sizes: dict[str, set[int]] = {}
    for point in ranked:
        sizes.setdefault(point.advantage, set()).add(point.group_size)
    chosen = next((advantage for advantage, group_sizes in sizes.items() if len(group_sizes) > 1), None)
    return [point for point in ranked if point.advantage == chosen]


def _sizes(points: Sequence[_Point], steps: Sequence[int], heading: str, weights: Sequence[WeightRankPoint]) -> Figure:
    name = f"mean, {name_of(points[0].advantage)}" if weights else name_of(points[0].advantage)
    dotted = "the constant 2 that binary rewards have been said to give"
    dotted = f"dotted: {dotted}; thin: each weight" if weights else f"dotted: the ceiling, G, and {dotted}"
    figure, axes = new_figure(
        heading,
        f"effective rank = {metric('effective_rank').formula}; mean over live groups, 95 % interval\n{dotted}",
        columns=len(steps),
        height=3.9,
        width=7.6 if len(steps) > 1 else 5.4,
        right=label_room([name, *(STYLES[null][0] for null in _NULLS)]),
        panel_titles=True,
    )
    sizes = sorted({point.group_size for point in points})
    highest = max([float(sizes[-1]), *(rank.ends[1] for rank in _ranks(points, weights))])
    for place, (panel, step) in enumerate(zip(axes, steps, strict=True)):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
        panel.set_ylim(0.93, highest * 1.1)
        tick_at(panel.xaxis, [1, 2, *sizes])
        tick_at(panel.yaxis, [float(2**power) for power in range(int(np.log2(highest)) + 1)])
        panel.set_xlabel("G")
        panel.set_title(f"step {step}", loc="left", fontsize=9, color=INK)
        if not weights:
            panel.plot(sizes, sizes, color=MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(2, color=MUTED, linewidth=0.8, linestyle=":")
        for tensor in dict.fromkeys(point.tensor for point in weights):
            of_tensor = [(p.group_size, p.effective_rank) for p in _at(weights, step) if p.tensor == tensor]
            defined = [(size, rank) for size, rank in of_tensor if rank.value is not None]
            _size_line(panel, defined, color=MUTED, line="-", marker="", width=0.6)
        _size_panel(panel, _at(points, step), name, last=place == len(steps) - 1)
        if place:
            panel.tick_params(labelleft=False)
    return figure


def _at(points: Sequence[_Chosen], step: int) -> list[_Chosen]:
    return sorted((point for point in points if point.step == step), key=lambda point: point.group_size)


def _ranks(points: Sequence[_Point], weights: Sequence[WeightRankPoint]) -> list[Estimate]:
    """All that is drawn."""
    nulls = [point.nulls[null].effective_rank for point in points for null in _NULLS if null in point.nulls]
    own = [point.effective_rank for point in (*points, *weights)]
    return [rank for rank in (*own, *nulls) if rank.is_defined]


def _size_panel(axes: Axes, points: Sequence[_Point], name: str, *, last: bool) -> None:
    labels = []
    for null in _NULLS:
        ranks = [(p.group_size, p.nulls[null].effective_rank) for p in points if null in p.nulls]
        defined = [(size, rank) for size, rank in ranks if rank.value is not None]
        if defined:
            label, color, line, marker = STYLES[null]
            end = _size_line(axes, defined, color=color, line=line, marker=marker, width=1.2)
            labels.append((end, label, color))
    measured = [(point.group_size, point.effective_rank) for point in points]
    labels.append((_size_line(axes, measured, color=BLUE, line="-", marker="o", width=1.8), name, BLUE))
    lows, highs = zip(*(rank.ends for _, rank in measured), strict=True)
    axes.fill_between([size for size, _ in measured], lows, highs, color=BLUE, alpha=0.15, linewidth=0)
    if last:
        label_lines(axes, labels, gap=0.075)


def _size_line(axes: Axes, ranks: _Known, *, color: str, line: object, marker: str, width: float) -> float:
    """Draws a line, and returns where it ends."""
    values = [rank.value or 0.0 for _, rank in ranks]
    axes.plot(
        [size for size, _ in ranks], values, color=color, linestyle=line, marker=marker, markersize=3.5, linewidth=width
    )
    return values[-1]


_MOST_GROUPS = 10
_MOST_FORMULATIONS = 20


def draw_updates(report: RankReport) -> dict[str, Figure]:
    """The cosines between the updates of the last step, where several, and its shares of the gradient, where any."""
    figures = {}
    step = max((update.step for update in report.formulations), default=None)
    updates = [update for update in report.formulations if update.step == step][:_MOST_FORMULATIONS]
    if len(updates) > 1:
        figures["rank_cosines"] = _cosines(updates)
    shares = [share for share in report.shares if share.rollouts]
    if shares:
        last = max(share.step for share in shares)
        figures["rank_shares"] = _shares([share for share in shares if share.step == last])
    return figures


def _cosines(updates: Sequence[FormulationUpdate]) -> Figure:
    size = len(updates)
    names = [name_of(update.advantage, limit=18) for update in updates]
    width, height = max(6.2, 1.75 + 0.5 * size), 1.75 + 0.34 * size
    figure, (axes,) = new_figure(
        f"Cosine between updates of the same rollouts, step {updates[0].step}",
        f"{metric('update_cosine').formula}, K the Gram matrix of the score vectors",
        width=width,
        height=height,
    )
    axes.set_position((1.4 / width, 0.95 / height, 0.5 * size / width, 0.34 * size / height))
    for y, update in enumerate(updates):
        for x, other in enumerate(updates):
            cosine = None if x == y else update.cosines[other.advantage].value
            _cell(axes, x, y, 1.0 if x == y else cosine)
    axes.set_xlim(0, size)
    axes.set_ylim(size, 0)
    axes.set_xticks([place + 0.5 for place in range(size)], names, rotation=40, ha="right", fontsize=7.5)
    axes.set_yticks([place + 0.5 for place in range(size)], names, fontsize=7.5)
    clear_frame(axes)
    return figure


def _cell(axes: Axes, x: int, y: int, cosine: float | None) -> None:
    if cosine is None:
        axes.text(x + 0.5, y + 0.5, "-", ha="center", va="center", fontsize=7.5, color=MUTED)
        return
    color, size = (BLUE if cosine > 0 else ORANGE), min(abs(cosine), 1.0)
    axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=color, alpha=size, linewidth=0))
    ink = ON_COLOR if size > 0.6 else INK
    axes.text(x + 0.5, y + 0.5, f"{cosine:.2f}", ha="center", va="center", fontsize=7.5, color=ink)


def _shares(shares: Sequence[GroupShare]) -> Figure:
    """The groups that give most, each bar cut at its rollouts, the largest of them named."""
    ordered = sorted(shares, key=lambda share: -abs(share.projection_share.value or 0.0))
    shown = [share for share in ordered if share.projection_share.value][:_MOST_GROUPS]
    dead = sum(not share.projection_share.value for share in shares)
    figure, (axes,) = new_figure(
        f"Which groups make up the gradient of step {shares[0].step}",
        f"{metric('projection_share').formula}: a group's part, cut at its rollouts; all parts add up to 1\n"
        f"{len(shown)} of {len(shares)} groups shown, {dead} have none; orange pulls against "
        "the rest",
        height=1.7 + 0.3 * max(len(shown), 1),
        right=1.9,
    )
    for row, share in enumerate(shown):
        _bar(axes, row, share)
    ends = [end for share in shown for end in _ends(share.rollouts)]
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    axes.set_xlim(min(0.0, *ends) * 1.05, max(0.0, *ends) * 1.05)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [name_of(share.group_id, limit=12) for share in shown], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_xlabel("share of the gradient")
    return figure


def _ends(rollouts: Sequence[float]) -> tuple[float, float]:
    """Where the bar of a group ends on either side."""
    return sum(part for part in rollouts if part < 0), sum(part for part in rollouts if part > 0)


def _bar(axes: Axes, row: int, share: GroupShare) -> None:
    left = {True: 0.0, False: 0.0}
    for part in sorted(share.rollouts, key=abs, reverse=True):
        color = BLUE if part > 0 else ORANGE
        axes.barh(row, part, left=left[part > 0], height=0.62, color=color, edgecolor="white", linewidth=0.6)
        left[part > 0] += part
    top = max(range(len(share.rollouts)), key=lambda sample: abs(share.rollouts[sample]))
    rate = "" if share.pass_rate is None else f", mean reward {share.pass_rate:.2f}"
    text = f"{share.projection_share.value:+.2f}{rate}\nrollout {top}: {share.rollouts[top]:+.2f}"
    axes.text(1.015, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=6.5, color=INK)


_LINES = ("zero", "below 1 %", "Hoyer", "Gini")
_Course = Sequence[tuple[int, Sequence[float | None]]]


def draw_sparsity(report: RankReport) -> dict[str, Figure]:
    """Four definitions over steps; none where fewer than two steps have a gradient under the logged advantage."""
    panels = {"rollouts": _of_rollouts(report)}
    if report.sparsity:
        tokens = report.sparsity[0].parts == "tokens"
        panels["tokens" if tokens else "entries of dL/dW, mean over weights"] = _below(report.sparsity)
    panels = {name: course for name, course in panels.items() if len(course) > 1}
    return {"rank_sparsity": _sparsity(panels)} if panels else {}


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


def _sparsity(panels: dict[str, _Course]) -> Figure:
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

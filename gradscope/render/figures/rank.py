"""Ranks as figures: over checkpoints and against the group size; and updates of formulations. Letters: G group size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.estimate import Estimate, mean_of_defined
from gradscope.render.figures import rank_spectra, style
from gradscope.render.views.rank import merge_same
from gradscope.results.rank import FormulationUpdate, GroupShare, RankCurvePoint, RankReport, WeightRankPoint
from gradscope.say import evenly

_MAX_ROWS = 24  # advantages in a panel; of more those of the lowest and the highest ranks are shown
_SAME_DIRECTION = 0.9  # cosine from which two updates count as one direction


def draw_rank(report: RankReport) -> dict[str, Figure]:
    """Ranks over checkpoints and against G, spectra with nulls, updates, sparsity; for weights the layers."""
    if report.rows == "weight":
        figures = _against_size(report) | rank_spectra.draw_layers(report) | draw_sparsity(report)
        return figures | rank_spectra.draw_gradients_and_updates(report.gradient_updates)
    if report.rows == "update":
        return rank_spectra.draw_weight_updates(report)
    figures = {"rank_curve": _curve(report)} if report.curve else {}
    figures |= _against_size(report) | rank_spectra.draw_nulls(report) | rank_spectra.draw_spectra(report)
    return figures | draw_updates(report) | draw_sparsity(report)


def _curve(report: RankReport) -> Figure:
    """The course of one advantage, a line a group size, and in a second panel all advantages at the last step."""
    panels = merge_same(report.curve)
    names, points = next((panel for panel in panels if "logged" in panel[0]), panels[0])
    last = max(point.step for point in report.curve)
    at_last = _at_last(panels, last)
    is_wide = len(at_last) > 1
    left_out = (
        f"; {len(panels) - len(at_last)} more advantages in the tables"
        if is_wide and len(at_last) < len(panels)
        else ""
    )
    centered = "centered" if report.spectra and report.spectra[0].label.centered else "not centered"
    title = f"advantage {', '.join(map(style.name_of, names))}"
    figure, axes = style.new_figure(
        _finding(points),
        f"effective rank = {metric('effective_rank').formula}, rows {centered}\n"
        f"mean over live groups with 95 % interval; dotted: the ceiling, G; thin: scores without advantages{left_out}",
        width=7.6 if is_wide else 5.4,
        height=max(4.2, 1.5 + 0.26 * len(at_last)) if is_wide else 4.2,
        right=0.75,
        panels=style.Panels(columns=1 + is_wide, share_x=False, titles=(title[:48], f"every advantage at step {last}")),
    )
    sizes = sorted({point.group_size for point in points})
    _panel(axes[0], points, sizes, sorted({point.step for point in points}))
    axes[0].set_xlabel("step")
    if is_wide:
        box = axes[0].get_position()
        axes[0].set_position((box.x0, box.y0, 0.34, box.height))
        axes[1].set_position((0.685, box.y0, 0.295, box.height))
        for row, (name, point) in enumerate(at_last):
            color = style.ORANGE if name.startswith("logged") else style.BLUE
            axes[1].plot(point.effective_rank.ends, (row, row), color=color, linewidth=1.6, alpha=0.5)
            axes[1].plot([point.effective_rank.value or 0.0], [row], color=color, marker="o")
        style.powers_of_two(axes[1], "x", max(point.effective_rank.ends[1] for _, point in at_last))
        style.list_rows(axes[1], [name for name, _ in at_last])
        axes[1].set_xlabel("effective rank")
    return figure


def _finding(points: Sequence[RankCurvePoint]) -> str:
    """The title: the last rank of the largest groups."""
    largest = max(point.group_size for point in points)
    ranked = [point for point in points if point.group_size == largest and point.effective_rank.value is not None]
    if not ranked:
        return "No group has a rank: all advantages are zero"
    end = max(ranked, key=lambda point: point.step)
    return f"A group's gradient spans {end.effective_rank.value:.1f} of {largest} directions at step {end.step}"


def _at_last(
    panels: Sequence[tuple[tuple[str, ...], list[RankCurvePoint]]], step: int
) -> list[tuple[str, RankCurvePoint]]:
    """The advantages that have a rank then, at their largest group size, by rank; those of one rank are one."""
    rows = []
    for names, points in panels:
        defined = [point for point in points if point.step == step and point.effective_rank.is_defined]
        if defined:
            left_out = f" and {len(names) - 1} more" if len(names) > 1 else ""
            rows.append(
                (f"{style.name_of(names[0], limit=18)}{left_out}", max(defined, key=lambda point: point.group_size))
            )
    rows.sort(key=lambda row: -(row[1].effective_rank.value or 0.0))
    return rows if len(rows) <= _MAX_ROWS else [*rows[: _MAX_ROWS // 2], *rows[-_MAX_ROWS // 2 :]]


def _panel(axes: Axes, points: Sequence[RankCurvePoint], sizes: Sequence[int], steps: Sequence[int]) -> None:
    style.powers_of_two(axes, "y", max(sizes))
    style.tick_steps(axes, steps, max_ticks=6)
    margin = 0.05 * (steps[-1] - steps[0]) or 0.5
    axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    labels = []
    for size, (color, line, marker) in zip(sizes, style.SERIES, strict=False):
        axes.axhline(size, color=color, linewidth=0.7, linestyle=":", alpha=0.6)
        ranks = [(p.step, p.effective_rank) for p in points if p.group_size == size]
        label = style.draw_course(axes, f"G = {size}", ranks, color=color, linestyle=line, marker=marker)
        if not label:
            continue
        scores = {
            p.step: p.nulls["unweighted"].effective_rank.value for p in points if p.group_size == size and p.nulls
        }
        axes.plot(list(scores), [rank or 0.0 for rank in scores.values()], color=color, linewidth=0.8, alpha=0.8)
        labels += label
    style.label_lines(axes, labels, gap=0.06)


_NULLS = ("unweighted", "shuffled", "gaussian")
_Point = RankCurvePoint | WeightRankPoint
_Chosen = TypeVar("_Chosen", bound=RankCurvePoint | WeightRankPoint)


def _against_size(report: RankReport) -> dict[str, Figure]:
    """Ranks against G of the first formulation with several G, at up to three steps; of dL/dW each weight as well."""
    name, subject, curve = "rank_sizes", "Rank of a group's gradient", list[_Point](report.curve)
    if report.rows == "weight":
        name, subject = "rank_weight_sizes", "Rank of dL/dW"
        curve = [point for point in report.weight_curve if point.tensor is None]
    ranked = [point for point in curve if point.effective_rank.is_defined]
    sizes: dict[str, set[int]] = {}
    for point in ranked:
        sizes.setdefault(point.advantage, set()).add(point.group_size)
    chosen = next((advantage for advantage, of_advantage in sizes.items() if len(of_advantage) > 1), None)
    points = [point for point in ranked if point.advantage == chosen]
    if not points:
        return {}
    weights = [point for point in report.weight_curve if point.tensor is not None and point.advantage == chosen]
    return {name: _sizes(points, evenly(sorted({point.step for point in points}), 3), subject, weights)}


def _sizes(points: Sequence[_Point], steps: Sequence[int], subject: str, weights: Sequence[WeightRankPoint]) -> Figure:
    name = f"mean, {style.name_of(points[0].advantage)}" if weights else style.name_of(points[0].advantage)
    dotted = "the constant 2 that binary rewards have been said to give"
    dotted = f"dotted: {dotted}; thin: each weight" if weights else f"dotted: the ceiling, G, and {dotted}"
    at_last = _points_at(points, steps[-1])
    smallest, largest = at_last[0], at_last[-1]
    figure, axes = style.new_figure(
        f"{subject}: {smallest.effective_rank.value:.1f} with {smallest.group_size} rollouts, "
        f"{largest.effective_rank.value:.1f} with {largest.group_size} (step {steps[-1]})",
        f"effective rank = {metric('effective_rank').formula}; mean over live groups, 95 % interval\n{dotted}",
        height=3.9,
        width=7.6 if len(steps) > 1 else 5.4,
        right=style.label_room([name, *(rank_spectra.STYLES[null][0] for null in _NULLS)]),
        panels=style.Panels(columns=len(steps), titles=[f"step {step}" for step in steps], share_y=True),
    )
    sizes = sorted({point.group_size for point in points})
    drawn = [point.effective_rank for point in (*points, *weights)]
    drawn += [point.nulls[null].effective_rank for point in points for null in _NULLS if null in point.nulls]
    highest = max([float(sizes[-1]), *(rank.ends[1] for rank in drawn if rank.is_defined)])
    for panel, step in zip(axes, steps, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
        style.tick_at(panel.xaxis, [1, 2, *sizes])
        style.powers_of_two(panel, "y", highest)
        panel.set_xlabel("G")
        if not weights:
            panel.plot(sizes, sizes, color=style.MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(2, color=style.MUTED, linewidth=0.8, linestyle=":")
        for tensor in dict.fromkeys(point.tensor for point in weights):
            of_tensor = [(p.group_size, p.effective_rank) for p in _points_at(weights, step) if p.tensor == tensor]
            style.draw_course(panel, "", of_tensor, color=style.MUTED, band=0, linewidth=0.6)
        _size_panel(panel, _points_at(points, step), name, last=panel is axes[-1])
    return figure


def _points_at(points: Sequence[_Chosen], step: int) -> list[_Chosen]:
    return sorted((point for point in points if point.step == step), key=lambda point: point.group_size)


def _size_panel(axes: Axes, points: Sequence[_Point], name: str, *, last: bool) -> None:
    labels = []
    for null in _NULLS:
        ranks = [(p.group_size, p.nulls[null].effective_rank) for p in points if null in p.nulls]
        label, color, line, marker = rank_spectra.STYLES[null]
        labels += style.draw_course(
            axes, label, ranks, color=color, band=0, linestyle=line, marker=marker, markersize=3.5, linewidth=1.2
        )
    measured = [(point.group_size, point.effective_rank) for point in points]
    labels += style.draw_course(axes, name, measured, color=style.BLUE, marker="o", markersize=3.5, linewidth=1.8)
    if last:
        style.label_lines(axes, labels, gap=0.075)


_MAX_GROUPS = 10
_MAX_FORMULATIONS = 20


def draw_updates(report: RankReport) -> dict[str, Figure]:
    """The cosines between the updates of the last step, where several, and its shares of the gradient, where any."""
    step = max((update.step for update in report.formulations), default=None)
    updates = [update for update in report.formulations if update.step == step][:_MAX_FORMULATIONS]
    figures = _cosines(updates) if len(updates) > 1 else {}
    shares = [share for share in report.shares if share.rollouts]
    if shares:
        last = max(share.step for share in shares)
        figures["rank_shares"] = _shares([share for share in shares if share.step == last])
    return figures


def _cosines(updates: Sequence[FormulationUpdate]) -> dict[str, Figure]:
    """How far each update points the way of the logged one, none where that is zero; the matrix is in the tables."""
    reference = next((update for update in updates if update.advantage == "logged"), updates[0])
    compared = [update for update in updates if update is not reference]
    defined = [
        (update, value) for update in compared if (value := reference.cosines[update.advantage].value) is not None
    ]
    defined.sort(key=lambda pair: -pair[1])
    if not defined:
        return {}
    absent = [
        style.name_of(update.advantage, limit=18)
        for update in compared
        if not reference.cosines[update.advantage].is_defined
    ]
    same, opposed = (
        sum(test) for test in zip(*((value >= _SAME_DIRECTION, value < 0) for _, value in defined), strict=True)
    )
    name = style.name_of(reference.advantage, limit=18)
    missing, pull = (f"; undefined: {', '.join(absent)}" if absent else "", "pulls" if opposed == 1 else "pull")
    figure, (axes,) = style.new_figure(
        f"{same} of {len(defined)} formulations give the {name} update, {opposed} {pull} against it",
        f"cosine with the update of {name} from the same rollouts of step {reference.step} = "
        f"{metric('update_cosine').formula}, K the Gram matrix of the score vectors; the same: {_SAME_DIRECTION:g} or "
        f"more{missing}",
        height=1.6 + 0.24 * max(len(defined), 3),
        left=1.6,
        right=0.6,
    )
    names = [style.name_of(update.advantage, limit=18) for update, _ in defined]
    style.draw_bars(axes, names, [value for _, value in defined], form="+.2f")
    axes.axvline(0.0, color=style.MUTED, linewidth=0.8)
    axes.set_xlim(min(0.0, defined[-1][1]) - 0.05, 1.12)
    return {"rank_cosines": figure}


def _shares(shares: Sequence[GroupShare]) -> Figure:
    """The groups that give most, each bar cut at its rollouts, the largest of them named."""
    ordered = sorted(shares, key=lambda share: -abs(share.projection_share.value or 0.0))
    shown = [share for share in ordered if share.projection_share.value][:_MAX_GROUPS]
    largest = 100 * (ordered[0].projection_share.value or 0.0)
    dead = sum(not share.projection_share.value for share in shares)
    figure, (axes,) = style.new_figure(
        f"One of {len(shares)} groups makes {largest:.0f} % of the gradient of step {shares[0].step}",
        f"{metric('projection_share').formula}: a group's part, cut at its rollouts; all parts add up to 1\n"
        f"{len(shown)} of {len(shares)} groups shown, {dead} have none; orange pulls against "
        "the rest",
        height=1.7 + 0.37 * max(len(shown), 1),
        left=1.15,
        right=2.15,
    )
    for row, share in enumerate(shown):
        left = {True: 0.0, False: 0.0}
        for part in sorted(share.rollouts, key=abs, reverse=True):
            color = style.BLUE if part > 0 else style.ORANGE
            axes.barh(row, part, left=left[part > 0], height=0.62, color=color, edgecolor="white", linewidth=0.6)
            left[part > 0] += part
        top = max(range(len(share.rollouts)), key=lambda sample: abs(share.rollouts[sample]))
        rate = "" if share.pass_rate is None else f", mean reward {share.pass_rate:.2f}"
        text = f"{share.projection_share.value:+.2f}{rate}\nrollout {top}: {share.rollouts[top]:+.2f}"
        axes.text(1.015, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=style.INK)
    ends = [sum(part for part in share.rollouts if (part > 0) is sign) for share in shown for sign in (False, True)]
    axes.axvline(0.0, color=style.MUTED, linewidth=0.8)
    axes.set_xlim(min(0.0, *ends) * 1.05, max(0.0, *ends) * 1.05)
    style.list_rows(axes, [style.name_of(share.group_id, limit=12) for share in shown])
    axes.set_xlabel("share of the gradient")
    return figure


_LINES = ("zero", "below 1 %", "Hoyer", "Gini")


def draw_sparsity(report: RankReport) -> dict[str, Figure]:
    """Four definitions over steps; none where fewer than two steps have a gradient under the logged advantage."""
    names, absent = ("zero_rows", "small_rows", "hoyer", "gini"), Estimate.undefined_because("not measured")
    panels = {
        "rollouts": [(step.step, [step.sparsity.get(name, absent).value for name in names]) for step in report.steps]
    }
    if report.sparsity:
        tokens = report.sparsity[0].parts == "tokens"
        points = panels["tokens" if tokens else "entries of dL/dW, mean over weights"] = []
        for step in sorted({row.step for row in report.sparsity}):  # tokens have one row a step
            of_step = [row for row in report.sparsity if row.step == step]
            table = [[e.value for e in (row.zero, row.small, row.hoyer, row.gini)] for row in of_step]
            points.append((step, [mean_of_defined(column) for column in zip(*table, strict=True)]))
    panels = {name: points for name, points in panels.items() if len(points) > 1}
    if not panels:
        return {}
    parts, (*_, (step, (zero, *_))) = next(iter(panels.items()))
    title = "Sparsity of the gradient over training"
    if zero is not None:
        title = f"At step {step}, {100 * zero:.0f} % of the {parts.partition(',')[0]} have no gradient"
    figure, axes = style.new_figure(
        title,
        "share of parts that are zero, and that are below 1 % of the largest; Hoyer and Gini: 0 for parts of equal "
        "size, towards 1 where a single one is everything",
        height=3.9,
        width=7.6 if len(panels) > 1 else 5.8,
        right=style.label_room(_LINES),
        panels=style.Panels(columns=len(panels), titles=tuple(panels), share_y=True),
    )
    for panel, points in zip(axes, panels.values(), strict=True):
        panel.set_ylim(-0.02, 1.02)
        panel.set_xlabel("step")
        style.tick_steps(panel, [step for step, _ in points], max_ticks=6)
        labels = style.draw_lines(
            panel, {name: [(step, values[index]) for step, values in points] for index, name in enumerate(_LINES)}
        )
        if panel is axes[-1]:
            style.label_lines(panel, labels, gap=0.08)
    return {"rank_sparsity": figure}

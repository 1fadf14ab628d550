"""What training did to the weights as figures: over checkpoints, matrix by matrix, and beside the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.estimate import Estimate
from gradscope.render.figures.rank.layers import Cell, heat_map, place_of
from gradscope.render.figures.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    SERIES,
    label_lines,
    label_room,
    name_of,
    new_figure,
    tick_steps,
)
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.rank import RankReport
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate

_MOST_MATRICES = 24
_SHARES = (
    ("bf16 sees", "bfloat16_changed"),
    ("one direction", "top_energy"),
    ("principal", "principal_overlap"),
    ("random", "principal_null"),
)
"""Label and field of the shares over checkpoints; the last is the null of the one before."""


def draw_weight_updates(report: RankReport) -> dict[str, Figure]:
    """Of ``rows = update``: ranks by layer, the trajectory beside a random walk, the course over checkpoints."""
    start = min((update.first for update in report.updates), default=0)
    since = [update for update in report.updates if update.first == start and update.effective_rank.value is not None]
    if not since:
        return {}
    figures = {"update_layers": _layers([update for update in since if update.last == since[-1].last])}
    if len({update.last for update in since}) > 1:
        figures["update_curve"] = _curve(since)
    if any(trajectory.top_energy.value is not None for trajectory in report.trajectories):
        figures["update_trajectory"] = _trajectory(report.trajectories)
    return figures


def draw_gradients_and_updates(pairs: Sequence[GradientAndUpdate]) -> dict[str, Figure]:
    """Ranks of the last step's gradient and of the change that followed, matrix by matrix; none without pairs."""
    ranked = [one for one in pairs if one.gradient_rank.value is not None and one.update_rank.value is not None]
    last = [one for one in ranked if one.step == ranked[-1].step][:_MOST_MATRICES]
    return {"rank_gradient_update": _beside(last)} if last else {}


def _layers(updates: Sequence[WeightUpdate]) -> Figure:
    cells = {}
    for update in updates:
        value, null = update.effective_rank.value or 0.0, update.gaussian.value or 1.0
        strength = min((value - 1) / (null - 1), 1.0) if null > 1 else 1.0
        cells[place_of(update.tensor)] = Cell(value=f"{value:.1f}", note=f"{null:.1f}", strength=strength)
    return heat_map(
        cells,
        f"Effective rank of each weight's change, updates {updates[0].first} to {updates[0].last}",
        f"{metric('effective_rank').formula} of W_{updates[0].last} - W_{updates[0].first}\n"
        "small print: unrelated entries would have this, a Gaussian matrix of the same shape; stronger: closer to it",
    )


def _curve(since: Sequence[WeightUpdate]) -> Figure:
    """Left the rank, right the shares, means over matrices."""
    times = sorted({update.last for update in since})
    figure, (ranks, shares) = new_figure(
        "The change of the weights over checkpoints",
        f"W_t - W_{since[0].first}, mean over {len({update.tensor for update in since})} matrices; band: from lowest "
        "to highest\nleft: effective rank, dotted: of unrelated entries; right: shares of energy, of entries",
        columns=2,
        height=4.0,
        width=7.6,
        right=label_room([label for label, _ in _SHARES]),
        panel_titles=True,
    )
    by_time = [[update for update in since if update.last == time] for time in times]
    columns = [[update.effective_rank.value or 0.0 for update in of_time] for of_time in by_time]
    ranks.plot(times, [sum(c) / len(c) for c in columns], color=BLUE, marker="o")
    ranks.fill_between(times, [min(c) for c in columns], [max(c) for c in columns], color=BLUE, alpha=0.15, linewidth=0)
    null = _mean([update.gaussian for update in since])
    ranks.axhline(null or 0.0, color=MUTED, linewidth=1.0, linestyle=":")
    ranks.set_ylim(0, 1.1 * max(null or 0.0, *(max(c) for c in columns)))
    ranks.set_title("effective rank", loc="left", fontsize=9, color=INK)
    labels = []
    for (label, field), (color, line, marker) in zip(_SHARES, SERIES, strict=True):
        course = [(time, _mean([getattr(u, field) for u in of])) for time, of in zip(times, by_time, strict=True)]
        points = [(time, value) for time, value in course if value is not None]
        if points:
            shares.plot(*zip(*points, strict=True), color=color, linestyle=line, marker=marker)
            labels.append((points[-1][1], label, color))
    shares.set_ylim(-0.02, 1.02)
    shares.set_title("shares", loc="left", fontsize=9, color=INK)
    label_lines(shares, labels, gap=0.08)
    for panel in (ranks, shares):
        tick_steps(panel, times, most=6)
        panel.set_xlabel("updates t")
    return figure


def _mean(estimates: Sequence[Estimate]) -> float | None:
    defined = [estimate.value for estimate in estimates if estimate.value is not None]
    return sum(defined) / len(defined) if defined else None


def _trajectory(trajectories: Sequence[UpdateTrajectory]) -> Figure:
    """Two panels, one row a matrix; the random walk is one line, because it knows no matrix."""
    shown = [one for one in trajectories if one.top_energy.value is not None][: _MOST_MATRICES + 1]
    figure, panels = new_figure(
        "The trajectory of the weights, beside a random walk",
        f"W_t - W_0 at t = {', '.join(map(str, shown[0].num_updates))} as rows; dashed: a random walk, whose steps "
        "have no direction in common",
        columns=2,
        height=1.75 + 0.19 * len(shown),
        width=7.6,
        right=1.6,
        panel_titles=True,
    )
    for panel, (title, measured, walk) in zip(
        panels,
        (
            ("energy in one direction", "top_energy", "walk_top_energy"),
            ("energy on a straight line", "linear_growth", "walk_linear_growth"),
        ),
        strict=True,
    ):
        panel.set_title(title, loc="left", fontsize=9, color=INK)
        panel.axvline(getattr(shown[0], walk).value, color=ORANGE, linestyle="--", linewidth=1.2)
        for row, one in enumerate(shown):
            value = getattr(one, measured).value
            if value is not None:
                panel.plot([value], [row], color=BLUE, marker="o" if one.tensor else "D", linestyle="")
        _rows(panel, len(shown))
        panel.set_xlim(0, 1.02)
        panel.set_xlabel("share")
    names = ["all together" if one.tensor is None else name_of(short_tensor(one.tensor)) for one in shown]
    _names(panels[-1], names)
    return figure


def _beside(pairs: Sequence[GradientAndUpdate]) -> Figure:
    figure, (axes,) = new_figure(
        f"The gradient of step {pairs[0].step}, and the change from {pairs[0].first} to {pairs[0].last} updates",
        f"effective rank = {metric('effective_rank').formula} of each weight's matrix; square: dL/dW, circle: "
        "W_b - W_a, bar: a matrix of unrelated entries",
        height=1.6 + 0.21 * len(pairs),
        right=1.75,
    )
    for row, one in enumerate(pairs):
        gradient, update = one.gradient_rank.value or 0.0, one.update_rank.value or 0.0
        axes.plot([gradient, update], [row, row], color=MUTED, linewidth=0.9)
        axes.plot([gradient], [row], color=ORANGE, marker="s", linestyle="")
        axes.plot([update], [row], color=BLUE, marker="o", linestyle="")
        if one.gaussian.value is not None:
            axes.plot([one.gaussian.value], [row], color=MUTED, marker="|", markersize=9, linestyle="")
    _rows(axes, len(pairs))
    axes.set_xlim(left=0)
    axes.set_xlabel("effective rank")
    _names(axes, [name_of(short_tensor(one.tensor)) for one in pairs])
    return figure


def _rows(axes: Axes, num_rows: int) -> None:
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.grid(axis="x", linewidth=0.6)


def _names(axes: Axes, names: Sequence[str]) -> None:
    for row, name in enumerate(names):
        axes.text(1.02, row, name, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5, color=INK)

"""Updates as figures: cosines between formulations, and which groups and rollouts make up a step's gradient."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradscope.catalog.lookup import metric
from gradscope.render.figures.style import BLUE, FAINT, INK, MUTED, ON_COLOR, ORANGE, clear_frame, name_of, new_figure
from gradscope.results.rank import FormulationUpdate, GroupShare, RankReport

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

"""A comparison as figures: learning curves with bands, and the paired differences as a forest plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradscope.render.figures import style
from gradscope.render.words import metric_title, pair_label
from gradscope.results.compare import ComparedCell, ComparedPair, Comparison

_TITLES = {"reward": "mean reward", "frac_reward_zero_std": "degenerate groups"}
_OVER_SEEDS = "Mean over seeds of each twentieth of a run; bands: from the lowest to the highest seed"
_MAX_CURVES = len(style.SERIES)
_MAX_PAIRS = 12  # pairs of one metric that a reader can take in
_ROW = 0.25  # inches of one pair
_GAP = 0.62  # inches between the panels of two metrics


def draw_comparison(comparison: Comparison) -> dict[str, Figure]:
    """Learning curves, a figure for each choice of the settings that vary, and a forest plot of the pairs, if any.

    Runs that do not state their formulation are in one figure, by their names.
    """
    by_settings: dict[str, list[ComparedCell]] = {}
    for cell in comparison.cells:
        settings = cell.settings if cell.states_advantage else {}
        by_settings.setdefault(", ".join(f"{name} {value}" for name, value in settings.items()), []).append(cell)
    with_curves = {name: {curve.cell for curve in comparison.curves if curve.metric == name} for name in _TITLES}
    figures = {}
    for number, (named, cells) in enumerate(by_settings.items(), start=1):
        stem = "compare_curves" if len(by_settings) == 1 else f"compare_curves_{number}"
        # the metrics that all of these cells have curves of: metrics alone may lack one
        names = {cell.name for cell in cells[:_MAX_CURVES]}
        if titles := {name: title for name, title in _TITLES.items() if names <= with_curves[name]}:
            figures[stem] = _curves(comparison, cells, named, titles)
    if comparison.pairs:
        figures["compare_forest"] = _forest(comparison)
    return figures


def _curves(comparison: Comparison, cells: Sequence[ComparedCell], settings: str, titles: Mapping[str, str]) -> Figure:
    shown = cells[:_MAX_CURVES]
    names = [style.name_of(_label(cell)) for cell in shown]
    num_more, (first, *_) = len(cells) - len(shown), titles
    last = {curve.cell: curve.mean[-1] for curve in comparison.curves if curve.metric == first}
    highest, *rest = sorted(shown, key=lambda cell: -last[cell.name])
    ends = (f"{last[cell.name]:.2f} {style.name_of(_label(cell), limit=16)}" for cell in (highest, *rest[-1:]))
    figure, panels = style.new_figure(
        f"{titles[first].capitalize()} at the end: {', '.join(ends)}",
        (f"{style.name_of(settings, limit=60)}. " if settings else "")
        + (_OVER_SEEDS if any(len(cell.seeds) > 1 for cell in shown) else "Mean of each twentieth of a run")
        + (f"; {num_more} more cells in the tables" if num_more else ""),
        height=0.6 + 2.4 * len(titles),
        right=style.label_room(names),
        panels=style.Panels(heights=[1] * len(titles), gap=0.14),
    )
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        labels = []
        for cell, name, (color, line, _) in zip(shown, names, style.SERIES, strict=False):
            curve = next(curve for curve in comparison.curves if (curve.cell, curve.metric) == (cell.name, metric))
            axes.plot(curve.steps, curve.mean, color=color, linestyle=line)
            axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
            labels.append((curve.mean[-1], name, color))
        axes.set_ylabel(title)
        axes.set_ylim(axes.get_ylim())  # labels are placed by the final limits
        style.label_lines(axes, labels, gap=0.085)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("step")
    return figure


def _label(cell: ComparedCell) -> str:
    return cell.advantage if cell.states_advantage else cell.name


def _forest(comparison: Comparison) -> Figure:
    """A panel a metric with an axis of its own, for metrics are in several units."""
    shown = {name: [pair for pair in comparison.pairs if pair.metric == name] for name in comparison.metrics}
    rows = min(_MAX_PAIRS, max(len(pairs) for pairs in shown.values()))
    num_more = max(len(pairs) for pairs in shown.values()) - rows
    tested = [pair for pairs in shown.values() for pair in pairs]
    lines = {_line(pair, comparison) for pair in tested}
    subject = f"{lines.pop()}, " if len(lines) == 1 else "Second minus first, "
    labels = {
        name: [_line(pair, comparison) for pair in pairs[:rows]] if lines else [] for name, pairs in shown.items()
    }
    height = len(shown) * (rows * _ROW + _GAP) + 1.2
    figure, panels = style.new_figure(
        f"Decided: {sum(pair.verdict in ('decides', 'differ') for pair in tested)} of {len(tested)} differences",
        f"{subject}with Student's 95 % interval over seeds, or that within two runs; filled: decided by sign flips, or "
        "beyond chance, corrected for all" + (f"; {num_more} more pairs in the tables" if num_more else ""),
        height=height,
        right=style.label_room([label for of_metric in labels.values() for label in of_metric]),
        panels=style.Panels(
            heights=[1] * len(shown), gap=_GAP / (rows * _ROW), titles=list(map(metric_title, shown)), share_x=False
        ),
    )
    for axes, (name, pairs) in zip(panels, shown.items(), strict=True):
        axes.axvline(0, color=style.MUTED, linewidth=0.8)
        for row, pair in enumerate(pairs[:rows]):
            _whisker(axes, row, pair)
        style.list_rows(axes, labels[name] + [""] * (rows - len(labels[name])), right=True)
    panels[-1].set_xlabel("difference")
    return figure


def _line(pair: ComparedPair, comparison: Comparison) -> str:
    """A pair's label on one line: the difference, and after a comma what both have in common."""
    parts = pair_label(pair, comparison).split("\n  at ")
    return ", ".join(style.name_of(" ".join(part.split()), limit=60) for part in parts)


def _whisker(axes: Axes, row: int, pair: ComparedPair) -> None:
    difference = pair.within_runs or pair.difference
    if difference.value is None:
        axes.text(0, row, " undefined", color=style.MUTED, fontsize=8, va="center")
        return
    if difference.interval is not None:
        axes.plot(difference.interval, [row, row], color=style.BLUE, linewidth=1.4)
    face = style.BLUE if pair.verdict in ("decides", "differ") else "white"
    axes.plot([difference.value], [row], color=style.BLUE, marker="o", markerfacecolor=face)

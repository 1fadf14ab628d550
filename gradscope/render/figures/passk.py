"""pass@k as a figure: curves with bands, and with two files their paired difference below."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradscope.catalog.lookup import metric
from gradscope.render.figures import style
from gradscope.results.passk import PassAtKReport

_MAX_CURVES = len(style.SERIES)


def draw_pass_at_k(report: PassAtKReport) -> dict[str, Figure]:
    """pass@k by k, and below it the difference of the first two files; no figure where every row is undefined."""
    if not any(row.pass_at_k.value is not None for table in report.tables for row in table.rows):
        return {}
    compared, names = report.comparison, [_label(table.name) for table in report.tables]
    pair = ""
    if compared is not None:
        pair = "\nminus ".join(style.name_of(name, limit=16) for name in (compared.second, compared.first))
    figure, axes = style.new_figure(
        _finding(report),
        f"pass@k = {metric('pass_at_k').formula}; bands: 95 %, resampling prompts",
        height=5.4 if compared else 4.0,
        right=style.label_room([*names, pair]),
        panels=style.Panels(heights=(2.1, 1) if compared else (1,), gap=0.14),
    )
    _curves(axes[0], report)
    if compared is not None:
        axes[1].axhline(0, color=style.MUTED, linewidth=0.8)
        axes[1].set_ylabel("difference")
        points = [(row.k, row.difference) for row in compared.rows]
        label = style.draw_course(
            axes[1], pair, points, color=style.INK, band=0.12, marker="o", markersize=3.5, linewidth=1.4
        )
        style.label_lines(axes[1], label)
        if label and compared.crossover_k is not None:
            axes[1].axvline(compared.crossover_k, color=style.BLUE, linewidth=0.8, linestyle=":")
            position = (compared.crossover_k, axes[1].get_ylim()[1])
            axes[1].annotate("sign has turned ", position, color=style.BLUE, fontsize=8, va="top", ha="right")
    axes[-1].set_xlabel("k, number of samples")
    return {"passk": figure}


def _finding(report: PassAtKReport) -> str:
    """pass@k of the first and the last file at the largest budget that both have."""
    tables = [{row.k: row.pass_at_k.value for row in table.rows if row.pass_at_k.is_defined} for table in report.tables]
    shared = sorted(set.intersection(*map(set, (tables[0], tables[-1]))))
    if not shared:
        return "What k samples can solve"
    first, last = (table[shared[-1]] for table in (tables[0], tables[-1]))
    if len(tables) > 1:
        names = [_label(report.tables[index].name) for index in (-1, 0)]
        return f"pass@{shared[-1]}: {last:.2f} of {names[0]}, {first:.2f} of {names[1]}"
    return f"pass@{shared[0]} is {tables[0][shared[0]]:.2f}, pass@{shared[-1]} {last:.2f}"


def _curves(axes: Axes, report: PassAtKReport) -> None:
    axes.set_ylim(0, 1)
    axes.set_ylabel("pass@k")
    labels = []
    drawn = list(zip(report.tables, style.SERIES, strict=False))
    for table, (color, line, marker) in drawn:
        points = [(row.k, row.pass_at_k) for row in table.rows]
        name = _label(table.name)
        labels += style.draw_course(
            axes, name, points, color=color, linestyle=line, marker=marker, zorder=3, clip_on=False
        )
    ks = sorted({row.k for table, _ in drawn for row in table.rows if row.pass_at_k.is_defined})
    axes.set_xscale("log", base=2)  # its ticks are budgets, thinned until their numbers do not touch
    style.tick_at(
        axes.xaxis, [k for index, k in enumerate(ks) if index == 0 or k == ks[-1] or k >= 1.35 * ks[index - 1]]
    )
    style.label_lines(axes, labels)
    if len(report.tables) > _MAX_CURVES:
        num_more = len(report.tables) - _MAX_CURVES
        axes.text(0.99, 0.03, f"{num_more} more in the tables", transform=axes.transAxes, ha="right", color=style.MUTED)


def _label(name: str) -> str:
    return style.name_of(name, limit=20)

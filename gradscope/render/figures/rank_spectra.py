"""Figures of matrices: singular values with null models, and heat maps of every weight's gradient and change."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator
from msgspec import Struct

from gradscope.catalog.lookup import metric
from gradscope.estimate import Estimate, mean_of_defined
from gradscope.render.figures import style
from gradscope.render.views.rank import short_tensor
from gradscope.results import rank as results
from gradscope.say import evenly

_MIN_SHARE = 1e-4  # smaller shares of the sum change no effective rank and are not drawn
STYLES: dict[str, tuple[str, str, Any, str]] = {
    "unweighted": ("scores", style.ORANGE, "--", "s"),
    "shuffled": ("shuffled", style.GREEN, "-.", "^"),
    "signs": ("signs", style.PURPLE, ":", "D"),
    "gaussian": ("unrelated", style.MUTED, (0, (1, 2.5)), ""),
}
"""Null -> its name, color, line style and marker."""


def draw_nulls(report: results.RankReport) -> dict[str, Figure]:
    """Mean spectra under the first advantage at the first, a middle and the last step; none where all are dead."""
    first = next((point.advantage for point in report.curve), None)
    of_first = [point for point in report.curve if point.advantage == first and point.profile]
    if not of_first:
        return {}
    size = max(point.group_size for point in of_first)
    points = evenly([point for point in of_first if point.group_size == size], 3)
    last, null = points[-1], points[-1].nulls.get("gaussian")
    unrelated = None if null is None else null.effective_rank.value
    comparison = "" if unrelated is None else f", unrelated rows {unrelated:.1f}"
    centered = "centered" if report.spectra[0].label.centered else "not centered"
    figure, axes = style.new_figure(
        f"A group spans {last.effective_rank.value or 0.0:.1f} directions at step {last.step}{comparison}",
        f"share of each singular value in their sum, s_i / sum(s), rows {centered}; mean over live groups\n"
        "the numbers are the mean effective ranks; below 0.0001 nothing is drawn",
        height=3.8,
        width=7.6 if len(points) > 1 else 5.4,
        right=style.label_room([style.name_of(points[0].advantage), *(name for name, *_ in STYLES.values())]),
        panels=style.Panels(
            columns=len(points),
            titles=[f"step {point.step}, {point.num_groups - point.num_dead} live" for point in points],
            share_y=True,
        ),
    )
    for panel, point in zip(axes, points, strict=True):
        panel.set_yscale("log")
        panel.set_ylim(_MIN_SHARE, 1.2)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(lambda share, _: f"{share:g}")
        panel.xaxis.set_major_locator(FixedLocator([1, *range(2, size + 1, max(1, size // 4))]))
        panel.set_xlabel("index")
        _null_panel(panel, point, last=panel is axes[-1])
    return {"rank_nulls": figure}


def _null_panel(axes: Axes, point: results.RankCurvePoint, *, last: bool) -> None:
    labels: list[tuple[float, str, str]] = []
    ranks: list[tuple[Estimate, str, str]] = []
    for name, null in reversed(tuple(point.nulls.items())):
        if null.profile:
            label, color, line, marker = STYLES[name]
            end = _null_line(
                axes, null.profile, color=color, linestyle=line, marker=marker, linewidth=1.2, markersize=3
            )
            labels.append((end, label, color))
            ranks.append((null.effective_rank, label, color))
    end = _null_line(axes, point.profile, color=style.BLUE, linestyle="-", marker="o", linewidth=1.8, markersize=4)
    name = style.name_of(point.advantage, limit=12)
    labels.append((end, name, style.BLUE))
    ranks.append((point.effective_rank, name, style.BLUE))
    if last:
        style.label_lines(axes, labels, gap=0.07)
    for index, (rank, name, color) in enumerate(reversed(ranks)):
        height = 0.04 + 0.07 * index
        axes.text(0.03, height, f"{rank.value:.2f} {name}", transform=axes.transAxes, color=color, fontsize=8)


def _null_line(axes: Axes, profile: Sequence[float], **line: Any) -> float:
    """Draws the values that are large enough to count, and returns the height of the line's end."""
    shown = [share for share in profile if share >= _MIN_SHARE]
    axes.plot(range(1, len(shown) + 1), shown, **line)
    return shown[-1]


def draw_spectra(report: results.RankReport) -> dict[str, Figure]:
    """The spectra of the first, a middle and the last step, all on the same scale; none where every matrix is zero."""
    by_step = _spectra_by_step(report)
    if not by_step:
        return {}
    spectra = [spectrum for of_step in by_step.values() for spectrum in of_step]
    step, last = max(by_step.items())
    groups = [spectrum for spectrum in last if spectrum.label.group_id is not None]
    shares = [max(spectrum.singular_values) / sum(spectrum.singular_values) for spectrum in groups or last]
    whose = "a group" if groups else "the step"
    figure, axes = style.new_figure(
        f"The first singular value of {whose} has {100 * sum(shares) / len(shares):.0f} % of their sum at step {step}",
        f"{_legend(report, spectra)}; advantage: {style.name_of(spectra[0].label.advantage)}; "
        f"{'' if report.rows == 'token' else 'dotted: '}the arithmetic's noise floor, below which nothing is drawn",
        height=3.7,
        width=7.6 if len(by_step) > 1 else 5.4,
        right=0.9,
        panels=style.Panels(columns=len(by_step), titles=[f"step {step}" for step in by_step], share_y=True),
    )
    values = [value for s in spectra for value in s.singular_values if value > s.noise_floor]
    low, high = (min(values), max(values)) if values else (1e-6, 1.0)
    floor = min(spectrum.noise_floor for spectrum in spectra)
    bottom = floor / 2 if low / 1000 < floor else low / 3
    for panel, of_step in zip(axes, by_step.values(), strict=True):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(style.power_of_ten)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(bottom, high * 2)
        panel.set_xlabel("index")
        _spectrum_panel(panel, of_step, last=panel is axes[-1])
    axes[0].set_ylabel("singular value")
    return {"rank_spectrum": figure}


def _spectra_by_step(report: results.RankReport) -> Mapping[int, list[results.GradientSpectrum]]:
    """Spectra of groups and steps under the logged advantage, at first, middle and last step."""
    chosen = results.preferred([spectrum.label.advantage for spectrum in report.spectra])
    by_step: dict[int, list[results.GradientSpectrum]] = defaultdict(list)
    for spectrum in report.spectra:
        if spectrum.label.advantage == chosen and any(spectrum.singular_values):
            by_step[spectrum.label.step].append(spectrum)
    size = {step: max(spectrum.label.group_size for spectrum in spectra) for step, spectra in by_step.items()}
    return {
        step: [spectrum for spectrum in by_step[step] if spectrum.label.group_size == size[step]]
        for step in evenly(sorted(by_step), 3)
    }


def _legend(report: results.RankReport, spectra: Sequence[results.GradientSpectrum]) -> str:
    """A description of the lines, with shape and centering."""
    centered = "centered" if spectra[0].label.centered else "not centered"
    groups = [spectrum for spectrum in spectra if spectrum.label.group_id is not None]
    num_rows, num_columns = (groups or spectra)[0].label.shape
    matrix = f"matrix {num_rows} x {num_columns:,}, {centered}"
    if report.rows == "group":
        return f"a row of the matrix is the sum of a group's gradients ({matrix})"
    if report.rows == "token":
        counts = [spectrum.label.shape[0] for spectrum in groups]
        sizes = f"{min(counts)} to {max(counts)}"
        return f"a thin line a group; its rows are the gradients of its tokens ({sizes} x {num_columns:,}, {centered})"
    if not groups:
        return f"all rollouts of the step ({matrix})"
    return f"a thin line a group ({matrix}); all rollouts of the step together in orange"


def _spectrum_panel(axes: Axes, spectra: Sequence[results.GradientSpectrum], *, last: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda index, _: f"{index:g}")
    labels: list[tuple[float, str, str]] = []
    groups = [s for s in spectra if s.label.group_id is not None]
    alpha = 0.3 if len(groups) > 12 else 0.6
    ends = [_line(axes, spectrum, color=style.BLUE, width=0.9, marker="o", alpha=alpha) for spectrum in groups]
    if any(ends):
        labels.append((max(ends, key=len)[-1], "groups", style.BLUE))
    for spectrum in spectra:
        if spectrum.label.group_id is None:
            shown = _line(axes, spectrum, color=style.ORANGE, width=1.8, dash="--")
            labels += [(shown[-1], "step", style.ORANGE)] if shown else []
            axes.axhline(spectrum.noise_floor, color=style.MUTED, linewidth=0.8, linestyle=":")
    if last:
        style.label_lines(axes, labels, gap=0.08)


def _line(
    axes: Axes,
    spectrum: results.GradientSpectrum,
    *,
    color: str,
    width: float,
    dash: str = "-",
    marker: str = "",
    alpha: float = 1,
) -> list[float]:
    """Draws the values above the noise floor, and returns them."""
    shown = [value for value in spectrum.singular_values if value > spectrum.noise_floor]
    indices = range(1, len(shown) + 1)
    axes.plot(indices, shown, color=color, linewidth=width, linestyle=dash, marker=marker, markersize=2.6, alpha=alpha)
    return shown


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$")
_LETTER, _PAGE = 8.0, 7.2
"""Points of a letter in a figure of so many inches; a wider one is shown smaller, so its letters are larger."""
_FAINTEST = 0.07  # opacity of the lowest cell
OUTSIDE = "outside"  # the row of weights that belong to no layer, such as the embedding
_UNRELATED = "unrelated entries would have this, a Gaussian matrix of the same shape; stronger: closer to it"


def draw_layers(report: results.RankReport) -> dict[str, Figure]:
    """Heat maps of rank and sparsity at the last step of ``rows = weight``; none where no weight has a gradient."""
    figures = {}
    ranked = [s for s in report.spectra if s.label.tensor is not None and s.ranks.effective_rank.value is not None]
    if ranked:
        step = max(spectrum.label.step for spectrum in ranked)
        cells = {}
        for spectrum in (spectrum for spectrum in ranked if spectrum.label.step == step):
            null = spectrum.nulls.get("gaussian")
            ceiling = min(spectrum.label.shape) if null is None or null.value is None else null.value
            cells[heat_map_cell(spectrum.label.tensor or "")] = _rank_cell(spectrum.ranks.effective_rank, ceiling)
        figures["rank_layers"] = heat_map(
            cells,
            f"A weight's gradient has rank {_range(cells)} at step {step}",
            f"effective rank = {metric('effective_rank').formula} of the step's gradient matrix of each weight\n"
            f"small print: {_UNRELATED}",
        )
    uneven = [row for row in report.sparsity if row.tensor is not None and row.gini.value is not None]
    if uneven:
        step = max(row.step for row in uneven)
        cells = {
            heat_map_cell(row.tensor or ""): Cell(
                value=f"{row.gini.value:.2f}", note=f"{row.small.value:.0%}", strength=row.gini.value or 0.0
            )
            for row in uneven
            if row.step == step
        }
        figures["rank_layers_sparsity"] = heat_map(
            cells,
            f"A weight's gradient has Gini {_range(cells)} at step {step}",
            "Gini of the absolute values of its entries: 0 for equal sizes, towards 1 where a single entry is "
            "everything\nsmall print: share of entries below 1 % of the largest",
        )
    return figures


class Cell(Struct, frozen=True, kw_only=True):
    """One weight of a heat map."""

    value: str  # the number
    note: str  # small print below it
    strength: float  # how much color, from 0 to 1


def _range(cells: Mapping[tuple[str, str], Cell]) -> str:
    values = sorted((cell.value for cell in cells.values()), key=float)
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _rank_cell(rank: Estimate, ceiling: float) -> Cell:
    value = rank.value or 0.0
    strength = (value - 1) / (ceiling - 1) if ceiling > 1 else 1.0
    return Cell(value=f"{value:.1f}", note=f"{ceiling:.1f}", strength=min(strength, 1.0))


def heat_map_cell(tensor: str) -> tuple[str, str]:
    """Row and column of a tensor in the heat map: its layer, or where there is none ``outside``, and its module."""
    name = tensor.replace(".default", "").removesuffix(".weight")
    layer = _LAYER.search(name)
    row, module = (layer[1], layer[2]) if layer else (OUTSIDE, name)
    parts = module.split(".")
    column = ".".join(parts[-2:]) if parts[-1].startswith("lora_") else parts[-1]
    return row, column


def heat_map(cells: Mapping[tuple[str, str], Cell], title: str, subtitle: str) -> Figure:
    """Weights by layer and module, each in its :func:`heat_map_cell`; the subtitle explains the small print."""
    rows = sorted({row for row, _ in cells}, key=lambda row: (row == OUTSIDE, int(row) if row.isdigit() else 0))
    columns = list(dict.fromkeys(column for _, column in cells))
    width, height = 1.9 + max(0.74 * len(columns), 3.6), 1.75 + 0.46 * len(rows)
    figure, (axes,) = style.new_figure(title, subtitle, width=width, height=height, right=0.25)
    letter = _LETTER * max(1.0, width / _PAGE)
    for (row, column), cell in cells.items():
        x, y = columns.index(column), rows.index(row)
        opacity = _FAINTEST + (1 - _FAINTEST) * cell.strength
        axes.add_patch(Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=style.BLUE, alpha=opacity, linewidth=0))
        ink = style.ON_COLOR if opacity > 0.6 else style.INK
        text: dict[str, Any] = {"color": ink, "ha": "center", "va": "center", "fontsize": letter}
        axes.text(x + 0.5, y + 0.32, cell.value, fontweight="bold", **text)
        axes.text(x + 0.5, y + 0.74, cell.note, **text)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    names = [style.name_of(column, limit=22) for column in columns]
    # long names in two lines, so that they stay horizontal
    names = [name if len(name) <= 9 else name.replace("_", "_\n", 1).replace(".", ".\n", 1) for name in names]
    axes.set_xticks([index + 0.5 for index in range(len(columns))], names, fontsize=letter)
    layers = [style.name_of(row if row == OUTSIDE else f"layer {row}") for row in rows]
    axes.set_yticks([index + 0.5 for index in range(len(rows))], layers, fontsize=letter)
    style.clear_frame(axes)
    return figure


_MAX_MATRICES = 24
_SHARES = (
    ("bf16 sees", "bfloat16_changed"),
    ("one direction", "top_energy"),
    ("principal", "principal_overlap"),
    ("random", "principal_null"),
)
"""Label and field of the shares over checkpoints; the last is the null of the one before."""


def draw_weight_updates(report: results.RankReport) -> dict[str, Figure]:
    """Of ``rows = update``: ranks by layer, the trajectory and a random walk, the course over checkpoints."""
    start = min((update.first for update in report.updates), default=0)
    since = [update for update in report.updates if update.first == start and update.effective_rank.value is not None]
    if not since:
        return {}
    last = since[-1].last
    cells = {
        heat_map_cell(update.tensor): _rank_cell(update.effective_rank, update.gaussian.value or 1.0)
        for update in since
        if update.last == last
    }
    formula = metric("effective_rank").formula
    layers = heat_map(
        cells,
        f"A weight's change from {start} to {last} updates has rank {_range(cells)}",
        f"effective rank = {formula} of W_{last} - W_{start}\nsmall print: {_UNRELATED}",
    )
    figures = {"update_layers": layers}
    if len({update.last for update in since}) > 1:
        figures["update_curve"] = _curve(since)
    if any(trajectory.top_energy.value is not None for trajectory in report.trajectories):
        figures["update_trajectory"] = _trajectory(report.trajectories)
    return figures


def draw_gradients_and_updates(pairs: Sequence[results.GradientAndUpdate]) -> dict[str, Figure]:
    """Ranks of the last step's gradient and of the change that followed, matrix by matrix; none without pairs."""
    ranked = [pair for pair in pairs if pair.gradient_rank.value is not None and pair.update_rank.value is not None]
    if not ranked:
        return {}
    pairs = [pair for pair in ranked if pair.step == ranked[-1].step][:_MAX_MATRICES]
    num_lower = sum((pair.gradient_rank.value or 0.0) < (pair.update_rank.value or 0.0) for pair in pairs)
    figure, (axes,) = style.new_figure(
        f"In {num_lower} of {len(pairs)} weights the gradient of step {pairs[0].step} has a lower rank than the change",
        f"effective rank = {metric('effective_rank').formula} of each weight's matrix; square: dL/dW, circle: "
        f"W_{pairs[0].last} - W_{pairs[0].first}, bar: a matrix of unrelated entries",
        height=1.6 + 0.21 * len(pairs),
        right=1.75,
    )
    for row, pair in enumerate(pairs):
        gradient, update = pair.gradient_rank.value or 0.0, pair.update_rank.value or 0.0
        axes.plot([gradient, update], [row, row], color=style.MUTED, linewidth=0.9)
        axes.plot([gradient], [row], color=style.ORANGE, marker="s", linestyle="")
        axes.plot([update], [row], color=style.BLUE, marker="o", linestyle="")
        if pair.gaussian.value is not None:
            axes.plot([pair.gaussian.value], [row], color=style.MUTED, marker="|", markersize=9, linestyle="")
    style.list_rows(axes, [style.name_of(short_tensor(pair.tensor)) for pair in pairs], right=True)
    axes.set_xlim(left=0)
    axes.set_xlabel("effective rank")
    return {"rank_gradient_update": figure}


def _curve(since: Sequence[results.WeightUpdate]) -> Figure:
    """Left the rank, right the shares, means over matrices."""
    times = sorted({update.last for update in since})
    by_time = [[update for update in since if update.last == time] for time in times]
    columns = [[update.effective_rank.value or 0.0 for update in of_time] for of_time in by_time]
    null = mean_of_defined(update.gaussian.value for update in since)
    figure, (ranks, shares) = style.new_figure(
        f"A weight's change has rank {sum(columns[-1]) / len(columns[-1]):.1f} after {times[-1]} updates, unrelated "
        f"entries {null or 0.0:.1f}",
        f"W_t - W_{since[0].first}, mean over {len({update.tensor for update in since})} matrices; band: from lowest "
        "to highest\nleft: effective rank, dotted: of unrelated entries; right: shares of energy, of entries",
        height=4.0,
        width=7.6,
        right=style.label_room([label for label, _ in _SHARES]),
        panels=style.Panels(columns=2, titles=("effective rank", "shares")),
    )
    ranks.plot(times, [sum(c) / len(c) for c in columns], color=style.BLUE, marker="o")
    ranks.fill_between(
        times, [min(c) for c in columns], [max(c) for c in columns], color=style.BLUE, alpha=0.15, linewidth=0
    )
    ranks.axhline(null or 0.0, color=style.MUTED, linewidth=1.0, linestyle=":")
    ranks.set_ylim(0, 1.1 * max(null or 0.0, *(max(c) for c in columns)))
    means = {
        label: [mean_of_defined(getattr(update, field).value for update in of_time) for of_time in by_time]
        for label, field in _SHARES
    }
    labels = style.draw_lines(shares, {label: list(zip(times, values, strict=True)) for label, values in means.items()})
    shares.set_ylim(-0.02, 1.02)
    style.label_lines(shares, labels, gap=0.08)
    for panel in (ranks, shares):
        style.tick_steps(panel, times, max_ticks=6)
        panel.set_xlabel("updates t")
    return figure


def _trajectory(trajectories: Sequence[results.UpdateTrajectory]) -> Figure:
    """Two panels, one row a matrix; the random walk is one line, because it knows no matrix."""
    shown = [trajectory for trajectory in trajectories if trajectory.top_energy.value is not None][: _MAX_MATRICES + 1]
    whose = "all weights" if shown[0].tensor is None else style.name_of(short_tensor(shown[0].tensor))
    figure, axes = style.new_figure(
        f"{100 * (shown[0].top_energy.value or 0.0):.0f} % of the path of {whose} is in one direction",
        f"W_t - W_0 at t = {', '.join(map(str, shown[0].num_updates))} as rows; dashed: a random walk, whose steps "
        "have no direction in common",
        height=1.75 + 0.19 * len(shown),
        width=7.6,
        right=1.6,
        panels=style.Panels(columns=2, titles=("energy in one direction", "energy on a straight line")),
    )
    for panel, measured in zip(axes, ("top_energy", "linear_growth"), strict=True):
        panel.axvline(getattr(shown[0], f"walk_{measured}").value, color=style.ORANGE, linestyle="--", linewidth=1.2)
        for row, trajectory in enumerate(shown):
            value = getattr(trajectory, measured).value
            if value is not None:
                panel.plot([value], [row], color=style.BLUE, marker="o" if trajectory.tensor else "D", linestyle="")
        panel.set_xlim(0, 1.02)
        panel.set_xlabel("share")
    names = [
        "all together" if spectrum.tensor is None else style.name_of(short_tensor(spectrum.tensor))
        for spectrum in shown
    ]
    style.list_rows(axes[0], [""] * len(shown), right=True)
    style.list_rows(axes[1], names, right=True)
    return figure

"""Effective rank as figures: the curve over checkpoints and the spectra behind it. Letters: G group size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from gradscope.metrics.catalog import metric
from gradscope.report.figure_layers import draw_layers
from gradscope.report.figure_style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    SERIES,
    label_lines,
    name_of,
    new_figure,
    power_of_ten,
    tick_steps,
)
from gradscope.results.rank import GradientSpectrum, RankCurvePoint, RankReport

_MOST_PANELS = 12
_MOST_SPECTRA = 3


def draw_rank(report: RankReport) -> dict[str, Figure]:
    """The figures of a rank report.

    Args:
        report: The measurement.

    Returns:
        The curve over checkpoints, the spectra of groups and steps, or the ranks of the layers.
    """
    if report.rows == "weight":
        return draw_layers(report)
    figures = {"rank_curve": _curve(report)} if report.curve else {}
    logged = _spectra_by_step(report)
    if logged:
        figures["rank_spectrum"] = _spectrum(report, logged)
    return figures


def _curve(report: RankReport) -> Figure:
    """One panel per formulation, one line per group size: the same rollouts under each advantage."""
    panels: dict[str, list[RankCurvePoint]] = defaultdict(list)
    for point in report.curve:
        panels[point.advantage].append(point)
    names = list(panels)[:_MOST_PANELS]
    columns = len(names) if len(names) <= 3 else min(4, math.ceil(math.sqrt(len(names))))
    rows = -(-len(names) // columns)
    centered = "centered" if report.spectra and report.spectra[0].centered else "not centered"
    figure, axes = new_figure(
        "Directions that a group's gradients span",
        f"effective rank = {metric('effective_rank').formula}, rows {centered}\n"
        f"mean over live groups with 95 % interval; dotted: the ceiling, G{_panels_left(panels)}",
        width=4.6 if columns == 1 else 7.6,
        height=1.6 + 1.9 * rows,
        rows=rows,
        columns=columns,
        right=0.75,
        hspace=0.3,
        panel_titles=True,
    )
    sizes = sorted({point.group_size for point in report.curve})
    steps = sorted({point.step for point in report.curve})
    for place, panel in enumerate(axes):
        if place >= len(names):
            panel.set_visible(False)
            continue
        _panel(
            panel, panels[names[place]], sizes, steps, last=place % columns == columns - 1 or place == len(names) - 1
        )
        panel.set_title(name_of(names[place]), loc="left", fontsize=9, color=INK)
        if place % columns:
            panel.tick_params(labelleft=False)
        if place + columns >= len(names):
            panel.set_xlabel("step")
            panel.tick_params(labelbottom=True)
    return figure


def _panels_left(panels: Mapping[str, object]) -> str:
    more = len(panels) - _MOST_PANELS
    return f"; {more} more advantages are in the tables" if more > 0 else ""


def _panel(
    axes: Axes, points: Sequence[RankCurvePoint], sizes: Sequence[int], steps: Sequence[int], *, last: bool
) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(0.93, max(sizes) * 1.1)
    axes.yaxis.set_major_locator(FixedLocator([1, *sizes]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda rank, _: f"{rank:g}")
    tick_steps(axes, steps, most=6)
    margin = 0.05 * (steps[-1] - steps[0]) or 0.5
    axes.set_xlim(steps[0] - margin, steps[-1] + margin)
    labels = []
    for size, (color, line, marker) in zip(sizes, SERIES, strict=False):
        axes.axhline(size, color=color, linewidth=0.7, linestyle=":", alpha=0.6)
        known = [
            (p.step, p.effective_rank) for p in points if p.group_size == size and p.effective_rank.value is not None
        ]
        if not known:
            continue
        places, values = [step for step, _ in known], [e.value or 0.0 for _, e in known]
        axes.plot(places, values, color=color, linestyle=line, marker=marker)
        lows = [e.low if e.low is not None else e.value or 0.0 for _, e in known]
        highs = [e.high if e.high is not None else e.value or 0.0 for _, e in known]
        axes.fill_between(places, lows, highs, color=color, alpha=0.15, linewidth=0)
        labels.append((values[-1], f"G = {size}", color))
    if last:
        label_lines(axes, labels, gap=0.1)


def _spectra_by_step(report: RankReport) -> Mapping[int, list[GradientSpectrum]]:
    """Spectra of whole groups and steps under the logged advantage, at first, middle and last step."""
    advantages = [spectrum.advantage for spectrum in report.spectra]
    chosen = "logged" if "logged" in advantages else next(iter(advantages), None)
    by_step: dict[int, list[GradientSpectrum]] = defaultdict(list)
    for spectrum in report.spectra:
        if spectrum.advantage == chosen and any(spectrum.singular_values):
            by_step[spectrum.step].append(spectrum)
    steps = sorted(by_step)
    picked = steps if len(steps) <= _MOST_SPECTRA else [steps[0], steps[len(steps) // 2], steps[-1]]
    return {step: _largest_groups(by_step[step]) for step in picked}


def _largest_groups(spectra: Sequence[GradientSpectrum]) -> list[GradientSpectrum]:
    largest = max((s.group_size for s in spectra if s.group_id is not None), default=0)
    return [s for s in spectra if s.group_id is None or s.group_size == largest]


def _spectrum(report: RankReport, by_step: Mapping[int, Sequence[GradientSpectrum]]) -> Figure:
    groups = [s for spectra in by_step.values() for s in spectra if s.group_id is not None]
    shape = f"{groups[0].shape[0]} x {groups[0].shape[1]:,}" if groups else "R x P"
    centered = "centered" if report.spectra[0].centered else "not centered"
    advantage = next(iter(by_step.values()))[0].advantage
    figure, axes = new_figure(
        "Singular values of the gradient matrix",
        f"a thin line a group (matrix {shape}, {centered}); all rollouts of the step together in orange; "
        f"advantage: {name_of(advantage)}; dotted: the noise floor of the arithmetic, below which nothing is drawn",
        columns=len(by_step),
        height=3.7,
        width=7.6 if len(by_step) > 1 else 5.4,
        right=0.9,
        panel_titles=True,
    )
    values = [v for spectra in by_step.values() for s in spectra for v in s.singular_values if v > s.noise_floor]
    low, high = (min(values), max(values)) if values else (1e-6, 1.0)
    floor = min(s.noise_floor for spectra in by_step.values() for s in spectra)
    bottom = floor / 2 if low / 1000 < floor else low / 3
    for place, (panel, (step, spectra)) in enumerate(zip(axes, by_step.items(), strict=True)):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(power_of_ten)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(bottom, high * 2)
        panel.set_title(f"step {step}", loc="left", fontsize=9, color=INK)
        panel.set_xlabel("index")
        _spectrum_panel(panel, spectra, last=place == len(by_step) - 1)
        if place:
            panel.tick_params(labelleft=False)
    axes[0].set_ylabel("singular value")
    return figure


def _spectrum_panel(axes: Axes, spectra: Sequence[GradientSpectrum], *, last: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda index, _: f"{index:g}")
    labels: list[tuple[float, str, str]] = []
    groups = [s for s in spectra if s.group_id is not None]
    ends = [_line(axes, spectrum, color=BLUE, width=0.9, alpha=0.3 if len(groups) > 12 else 0.6) for spectrum in groups]
    if any(ends):
        labels.append((max(ends, key=len)[-1], "groups", BLUE))
    for spectrum in spectra:
        if spectrum.group_id is None:
            shown = _line(axes, spectrum, color=ORANGE, width=1.8, style="--")
            labels += [(shown[-1], "step", ORANGE)] if shown else []
            axes.axhline(spectrum.noise_floor, color=MUTED, linewidth=0.8, linestyle=":")
    if last:
        label_lines(axes, labels, gap=0.08)


def _line(
    axes: Axes, spectrum: GradientSpectrum, *, color: str, width: float, style: str = "-", alpha: float = 1.0
) -> list[float]:
    """Draws what is above the noise floor, and returns it."""
    shown = [value for value in spectrum.singular_values if value > spectrum.noise_floor]
    marker = "" if len(shown) > 16 else "o"
    places = range(1, len(shown) + 1)
    axes.plot(places, shown, color=color, linewidth=width, linestyle=style, marker=marker, markersize=2.6, alpha=alpha)
    return shown

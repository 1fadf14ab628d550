"""The singular values behind an effective rank: of every group, and of a whole step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gradscope.render.figures.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    first_middle_last,
    label_lines,
    name_of,
    new_figure,
    power_of_ten,
)
from gradscope.results.rank import GradientSpectrum, RankReport


def draw_spectra(report: RankReport) -> dict[str, Figure]:
    """The spectra of the first, a middle and the last step; none where every matrix is zero."""
    by_step = _spectra_by_step(report)
    return {"rank_spectrum": _spectrum(report, by_step)} if by_step else {}


def _spectra_by_step(report: RankReport) -> Mapping[int, list[GradientSpectrum]]:
    """Spectra of whole groups and steps under the logged advantage, at first, middle and last step."""
    advantages = [spectrum.label.advantage for spectrum in report.spectra]
    chosen = "logged" if "logged" in advantages else next(iter(advantages), None)
    by_step: dict[int, list[GradientSpectrum]] = defaultdict(list)
    for spectrum in report.spectra:
        if spectrum.label.advantage == chosen and any(spectrum.singular_values):
            by_step[spectrum.label.step].append(spectrum)
    return {step: _largest_groups(by_step[step]) for step in first_middle_last(sorted(by_step))}


def _largest_groups(spectra: Sequence[GradientSpectrum]) -> list[GradientSpectrum]:
    largest = max(spectrum.label.group_size for spectrum in spectra)
    return [spectrum for spectrum in spectra if spectrum.label.group_size == largest]


def _spectrum(report: RankReport, by_step: Mapping[int, Sequence[GradientSpectrum]]) -> Figure:
    """One panel a step, all on the same scale."""
    spectra = [spectrum for of_step in by_step.values() for spectrum in of_step]
    figure, axes = new_figure(
        "Singular values of the gradient matrix",
        f"{_legend(report, spectra)}; advantage: {name_of(spectra[0].label.advantage)}; "
        f"{'' if report.rows == 'token' else 'dotted: '}the arithmetic's noise floor, below which nothing is drawn",
        columns=len(by_step),
        height=3.7,
        width=7.6 if len(by_step) > 1 else 5.4,
        right=0.9,
        panel_titles=True,
    )
    values = [value for s in spectra for value in s.singular_values if value > s.noise_floor]
    low, high = (min(values), max(values)) if values else (1e-6, 1.0)
    floor = min(spectrum.noise_floor for spectrum in spectra)
    bottom = floor / 2 if low / 1000 < floor else low / 3
    for place, (panel, (step, of_step)) in enumerate(zip(axes, by_step.items(), strict=True)):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(power_of_ten)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(bottom, high * 2)
        panel.set_title(f"step {step}", loc="left", fontsize=9, color=INK)
        panel.set_xlabel("index")
        _spectrum_panel(panel, of_step, last=place == len(by_step) - 1)
        if place:
            panel.tick_params(labelleft=False)
    axes[0].set_ylabel("singular value")
    return figure


def _legend(report: RankReport, spectra: Sequence[GradientSpectrum]) -> str:
    """What the lines are, with shape and centering."""
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


def _spectrum_panel(axes: Axes, spectra: Sequence[GradientSpectrum], *, last: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda index, _: f"{index:g}")
    labels: list[tuple[float, str, str]] = []
    groups = [s for s in spectra if s.label.group_id is not None]
    alpha = 0.3 if len(groups) > 12 else 0.6
    ends = [_line(axes, spectrum, color=BLUE, width=0.9, marker="o", alpha=alpha) for spectrum in groups]
    if any(ends):
        labels.append((max(ends, key=len)[-1], "groups", BLUE))
    for spectrum in spectra:
        if spectrum.label.group_id is None:
            shown = _line(axes, spectrum, color=ORANGE, width=1.8, style="--")
            labels += [(shown[-1], "step", ORANGE)] if shown else []
            axes.axhline(spectrum.noise_floor, color=MUTED, linewidth=0.8, linestyle=":")
    if last:
        label_lines(axes, labels, gap=0.08)


def _line(
    axes: Axes,
    spectrum: GradientSpectrum,
    *,
    color: str,
    width: float,
    style: str = "-",
    marker: str = "",
    alpha: float = 1,
) -> list[float]:
    """Draws what is above the noise floor, and returns it."""
    shown = [value for value in spectrum.singular_values if value > spectrum.noise_floor]
    places = range(1, len(shown) + 1)
    axes.plot(places, shown, color=color, linewidth=width, linestyle=style, marker=marker, markersize=2.6, alpha=alpha)
    return shown

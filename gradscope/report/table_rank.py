"""Effective ranks as tables. Letters: R rollouts, G group size, P parameters, N rows of a matrix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from gradscope.report.escape import cell, plain
from gradscope.report.layout import Column, add_row, document, formulas, heading, new_table, source_line
from gradscope.report.numbers import UNDEFINED, Footnotes, format_estimate, format_number
from gradscope.report.sparkline import sparkline
from gradscope.results.rank import GradientSpectrum, RankCurvePoint, RankReport, StepGeometry

MOST_ROWS = 24
"""A longer table is cut, and says so; every row is in the JSON and the CSV."""

_ROW_WORDS = {
    "rollout": "a rollout's gradient",
    "group": "the sum of a group's gradients",
    "weight": "an output of one weight matrix",
}


def rank_table(report: RankReport) -> Group:
    """The report for a terminal.

    Args:
        report: The measurement.

    Returns:
        The rank curve, the spectra of whole steps or weights, each step's geometry, then what it means.
    """
    notes = Footnotes()
    head = heading("Effective rank of gradients", source_line(report.source), _matrix(report), _engine(report))
    blocks: list[RenderableType] = []
    if report.curve:
        blocks.append(_curve(report.curve, notes))
    whole = [spectrum for spectrum in report.spectra if spectrum.group_id is None]
    if whole:
        blocks.append(_spectra(whole, notes, by_tensor=report.rows == "weight"))
    if report.steps:
        blocks.append(_geometry(report.steps, notes))
    for step, reason in report.skipped.items():
        notes.mark(f"step {step} was left out: {reason}")
    for advantage, reason in report.refused.items():
        notes.mark(f"{advantage} was left out: {reason}")
    blocks.append(formulas("effective_rank", "stable_rank", "participation_ratio"))
    return document(head, blocks, notes, report.findings)


def _matrix(report: RankReport) -> str:
    words = f"A matrix row is {_ROW_WORDS[report.rows]}"
    if not report.spectra:
        return f"{words}; no matrix could be formed"
    rows = sorted({spectrum.shape[0] for spectrum in report.spectra})
    columns = sorted({spectrum.shape[1] for spectrum in report.spectra})
    shape = " x ".join(f"{s[0]:,}" if len(s) == 1 else f"{s[0]:,} to {s[-1]:,}" for s in (rows, columns))
    centered = "rows centered" if report.spectra[0].centered else "rows not centered"
    return f"{words}; shape {shape}, {centered}"


def _engine(report: RankReport) -> str:
    known = [f"{key} {report.engine[key]}" for key in ("engine", "dtype", "device") if key in report.engine]
    return ", ".join(known)


def _curve(points: Sequence[RankCurvePoint], notes: Footnotes) -> Table:
    """One row per formulation and group size, at the last step, with the course over steps beside it."""
    curves: dict[str, dict[int, list[RankCurvePoint]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        curves[point.advantage][point.group_size].append(point)
    many = len({point.step for point in points}) > 1
    last_step = max(point.step for point in points)
    columns: list[Column] = [
        ("advantage", "left"),
        ("G", "right"),
        ("live", "right"),
        (f"eff. rank, step {last_step}", "left"),
        ("stable", "right"),
        ("particip.", "right"),
    ]
    table = new_table([*columns, ("over steps", "left")] if many else columns)
    for advantage, by_size in curves.items():
        for place, (group_size, curve) in enumerate(sorted(by_size.items())):
            name = cell("" if place else advantage, limit=16)
            add_row(table, name, *_curve_cells(group_size, curve, notes)[: len(table.columns) - 1])
    return table


def _curve_cells(group_size: int, curve: Sequence[RankCurvePoint], notes: Footnotes) -> tuple[str, ...]:
    last = curve[-1]
    return (
        str(group_size),
        f"{last.num_groups - last.num_dead}/{last.num_groups}",
        format_estimate(last.effective_rank, notes, "rank"),
        format_estimate(last.stable_rank, notes, "rank", interval=False),
        format_estimate(last.participation_ratio, notes, "rank", interval=False),
        sparkline([point.effective_rank.value for point in curve], low=1.0, high=float(group_size), width=12),
    )


def _spectra(spectra: Sequence[GradientSpectrum], notes: Footnotes, *, by_tensor: bool) -> Table:
    """Whole matrices: one per step and formulation, or one per weight; of many, the last step's at full group size."""
    titles = [
        "step",
        "tensor" if by_tensor else "advantage",
        "shape",
        "effective",
        "stable",
        "particip.",
        "90 %",
        "99 %",
    ]
    table = new_table([(title, "left" if place in {1, 2} else "right") for place, title in enumerate(titles)])
    last = max((spectrum.step, spectrum.group_size) for spectrum in spectra)
    few = len(spectra) <= MOST_ROWS
    shown = spectra if few else [s for s in spectra if (s.step, s.group_size) == last][:MOST_ROWS]
    for spectrum in shown:
        ranks = (spectrum.effective_rank, spectrum.stable_rank, spectrum.participation_ratio)
        energies = (spectrum.energy_rank_90, spectrum.energy_rank_99)
        add_row(
            table,
            str(spectrum.step),
            cell(_short_name(spectrum.tensor) if spectrum.tensor else spectrum.advantage, limit=22),
            f"{spectrum.shape[0]:,} x {spectrum.shape[1]:,}",
            *(format_estimate(rank, notes, "rank", interval=False) for rank in ranks),
            *(format_estimate(energy, notes, "count", interval=False) for energy in energies),
        )
    if len(shown) < len(spectra):
        notes.mark(f"{len(spectra) - len(shown)} more spectra are in the JSON and the CSV")
    return table


def _short_name(tensor: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` -> `0.self_attn.q_proj`."""
    return tensor.removeprefix("model.").removeprefix("layers.").removesuffix(".weight")


def _geometry(steps: Sequence[StepGeometry], notes: Footnotes) -> Table:
    titles = ["step", "weights", "R", "grad_norm", "logged", "cancellation", "class subspace"]
    table = new_table([(title, "left" if title == "weights" else "right") for title in titles])
    for step in steps[-MOST_ROWS:]:
        add_row(
            table,
            str(step.step),
            plain(step.weights.rstrip("/").rsplit("/", 1)[-1], limit=16),
            str(step.num_rollouts),
            format_estimate(step.grad_norm, notes, "norm", interval=False),
            UNDEFINED if step.logged_grad_norm is None else format_number(step.logged_grad_norm, "norm"),
            format_estimate(step.cancellation, notes, "share", interval=False),
            format_estimate(step.class_subspace_energy, notes, "share", interval=False),
        )
    return table

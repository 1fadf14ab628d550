"""Ranks of rollouts, spectra of matrices and the geometry of steps as tables. Letters: R rollouts, G group size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from gradscope.estimate import Estimate
from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.merge_equal_curves import merge_same
from gradscope.render.words.numbers import (
    FACTS,
    IN_THE_FILES,
    UNDEFINED,
    Footnotes,
    format_estimate,
    format_number,
    why_alone,
)
from gradscope.render.words.tensor_names import short_tensor
from gradscope.results.rank import GradientSpectrum, StepGeometry
from gradscope.results.ranks.curves import RankCurvePoint

MOST_ROWS = 24
"""A longer table is cut, and says so; every row is in the JSON and the CSV."""

_NULL_TITLES = {"unweighted": "scores", "shuffled": "shuf-\nfled", "gaussian": "unre-\nlated"}
"""Columns of the null models: the same matrix without what the rank might be due to. ``signs`` is ``scores`` but for
rollouts of zero advantage, and stands in the JSON."""
_RATIO_TITLE = "ratio"
"""Column of the rank over that of unrelated rows of the same norms."""
_SUM_TITLE = "sum"
"""Column of the squared norm of the sum of a group's rows over the sum of their squared norms."""

_SPARSITY = ("sparsity.zero_groups", "sparsity.small_rows", "sparsity.gini")
"""Catalogue names of the last three columns of a step's geometry."""


def ranks_table(points: Sequence[RankCurvePoint], notes: Footnotes) -> Table:
    """One row per formulation and group size, at the last step; and the same under each null."""
    last_step = max(point.step for point in points)
    columns: list[Column] = [
        ("advantage", "left"),
        ("size", "right"),
        ("live", "right"),
        (f"rank, step {last_step}", "left"),
        *((title, "right") for title in (*_NULL_TITLES.values(), _RATIO_TITLE, _SUM_TITLE)),
    ]
    table = new_table(columns)
    for (name, *others), curve in merge_same(points):
        mark = ""
        if others:
            same = f"{', '.join(others)}: the same, up to one factor a group"
            mark = notes.number(same)
        for row, group_size in enumerate(sorted({point.group_size for point in curve})):
            of_size = [point for point in curve if point.group_size == group_size]
            label = "" if row else plain(name, limit=13 - len(mark)) + mark
            add_row(table, cell(label, limit=13), *_curve_cells(of_size, last_step, notes))
    notes.remark(IN_THE_FILES)
    return table


def _curve_cells(curve: Sequence[RankCurvePoint], last_step: int, notes: Footnotes) -> tuple[str, ...]:
    last = curve[-1]
    if last.step != last_step:
        none = notes.mark(f"no group of {last.group_size} at step {last_step}")
        return (str(last.group_size), "0", none, *[UNDEFINED] * (len(_NULL_TITLES) + 2))
    nulls = {name: null.effective_rank for name, null in last.nulls.items()}
    return (
        str(last.group_size),
        f"{last.num_groups - last.num_dead}/{last.num_groups}",
        format_estimate(last.effective_rank, notes, "rank", alone=why_alone(last.num_groups - last.num_dead)),
        *_null_cells(nulls, notes),
        format_estimate(last.nulls["gaussian"].ratio, notes, "share", interval=False) if last.nulls else UNDEFINED,
        format_estimate(last.summed_energy, notes, "rank", interval=False) if last.nulls else UNDEFINED,
    )


def _null_cells(nulls: Mapping[str, Estimate], notes: Footnotes) -> Iterator[str]:
    for name in _NULL_TITLES:
        yield format_estimate(nulls[name], notes, "rank", interval=False) if name in nulls else UNDEFINED


def spectra_table(spectra: Sequence[GradientSpectrum], notes: Footnotes) -> Table:
    """Whole steps, one row per step and formulation; of many, the last step's at full group size."""
    titles = ["step", "advantage", "effective", "stable", "participation\nratio", *_NULL_TITLES.values()]
    table = new_table([(title, "left" if column == 1 else "right") for column, title in enumerate(titles)])
    last_step, size = max((spectrum.label.step, spectrum.label.group_size) for spectrum in spectra)
    of_size = [spectrum for spectrum in spectra if spectrum.label.group_size == size]
    few = len(of_size) <= MOST_ROWS
    shown = of_size if few else [spectrum for spectrum in of_size if spectrum.label.step == last_step][:MOST_ROWS]
    for spectrum in shown:
        ranks = (spectrum.ranks.effective_rank, spectrum.ranks.stable_rank, spectrum.ranks.participation_ratio)
        add_row(
            table,
            str(spectrum.label.step),
            cell(spectrum.label.advantage, limit=13),
            *(format_estimate(rank, notes, "rank", interval=False) for rank in ranks),
            *_null_cells(spectrum.nulls, notes),
        )
    notes.remark(FACTS)
    _count_the_rest(len(spectra) - len(shown), notes)
    return table


def matrices_table(spectra: Sequence[GradientSpectrum], notes: Footnotes) -> Table:
    """One row per weight matrix; of many, the last step's."""
    titles = [
        *("step", "tensor", "shape", "effec-\ntive"),
        *(_NULL_TITLES["gaussian"], "stable", "partici-\npation", "99 % of\nenergy"),
    ]
    table = new_table([(title, "left" if column in {1, 2} else "right") for column, title in enumerate(titles)])
    last = max(spectrum.label.step for spectrum in spectra)
    few = len(spectra) <= MOST_ROWS
    shown = spectra if few else [spectrum for spectrum in spectra if spectrum.label.step == last][:MOST_ROWS]
    for spectrum in shown:
        null = spectrum.nulls.get("gaussian")
        add_row(
            table,
            str(spectrum.label.step),
            cell(short_tensor(spectrum.label.tensor or ""), limit=22),
            f"{spectrum.label.shape[0]:,} x {spectrum.label.shape[1]:,}",
            format_estimate(spectrum.ranks.effective_rank, notes, "rank", interval=False),
            UNDEFINED if null is None else format_estimate(null, notes, "rank", interval=False),
            format_estimate(spectrum.ranks.stable_rank, notes, "rank", interval=False),
            format_estimate(spectrum.ranks.participation_ratio, notes, "rank", interval=False),
            format_estimate(spectrum.ranks.energy_rank_99, notes, "count", interval=False),
        )
    notes.remark(FACTS)
    _count_the_rest(len(spectra) - len(shown), notes)
    return table


def _count_the_rest(num_more: int, notes: Footnotes) -> None:
    if num_more:
        notes.remark(f"{num_more} more spectra are in the JSON and the CSV")


def geometry_table(steps: Sequence[StepGeometry], notes: Footnotes) -> Table:
    """Each step's norm, how much of it cancels, and how sparse it is; of many, the last steps."""
    titles = [
        *("step", "weights", "gradient\nnorm", "logged", "not\ncanceled"),
        *("class\nmeans", "dead\ngroups", "small\nrows", "Gini"),
    ]
    table = new_table([(title, "left" if title == "weights" else "right") for title in titles])
    for step in steps[-MOST_ROWS:]:
        shares = (
            step.cancellation,
            step.class_subspace_energy,
            *(step.sparsity.get(name.removeprefix("sparsity.")) for name in _SPARSITY),
        )
        add_row(
            table,
            str(step.step),
            plain(step.weights.rstrip("/").rsplit("/", 1)[-1], limit=14),
            format_estimate(step.grad_norm, notes, "norm", interval=False),
            UNDEFINED if step.logged_grad_norm is None else format_number(step.logged_grad_norm, "norm"),
            *(UNDEFINED if s is None else format_estimate(s, notes, "share", interval=False) for s in shares),
        )
    notes.remark(FACTS)
    notes.remark(IN_THE_FILES)
    return table

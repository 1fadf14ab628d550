"""The answer of `gradscope rank` step by step: the rank beside its ceilings, and whether the norm is the trainer's.

Letters: G group size, N rows of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.table import Table

from gradscope.estimate import Estimate
from gradscope.render.terminal.answer import evenly
from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import FACTS, IN_THE_FILES, UNDEFINED, Footnotes, format_estimate, why_alone
from gradscope.results.rank import GradientSpectrum, RankReport, StepGeometry
from gradscope.results.ranks.curves import RankCurvePoint, TokenRankPoint, WeightRankPoint
from gradscope.say import as_ranges, non_finite_word

_Point = RankCurvePoint | TokenRankPoint | WeightRankPoint
_WHAT = {
    "rollout": "of a group's rollouts",
    "hidden": "of a group's rollouts by the last hidden state",
    "logit": "of a group's rollouts by the logits",
    "advantage": "of a group's advantages",
    "token": "of a group's tokens",
    "weight": "of dL/dW of a group, mean over weights",
    "group": "of a step's groups",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One step under one advantage."""

    step: int
    rank: Estimate
    ceiling: float | None
    """Most directions that so many rows can span; None: it differs from weight to weight."""
    unrelated: Estimate | None
    scores: Estimate | None
    num_live: int | None = None
    """Groups that the rank is the mean of; None: it is of one matrix."""


def step_ranks(report: RankReport, *, whole: bool = False) -> Iterator[RenderableType]:
    """The table and its notes; nothing where the result has no rank a step.

    Args:
        report: What was measured.
        whole: Show every step, however many.

    Yields:
        What the table is of, the table, and a line each for what it leaves out and for ranks that are undefined.
    """
    rows, advantage = _rows(report)
    if not rows:
        return
    shown = rows if whole else evenly(rows)
    yield cell(f"Effective rank {_WHAT[report.rows]}, advantage {advantage}")
    yield _table(shown, {step.step: step for step in report.steps})
    if len(shown) < len(rows):
        yield cell(_rest(rows, shown))
    alone: dict[str, list[int]] = {}
    for row in rows:
        if row.rank.is_defined and row.rank.interval is None:
            alone.setdefault("" if row.num_live is None else why_alone(row.num_live), []).append(row.step)
    for reason, steps in alone.items():
        yield cell(f"No interval at step{'s' * (len(steps) > 1)} {as_ranges(steps)}: {reason}" if reason else FACTS)
    if any(null is not None and null.interval for row in shown for null in (row.unrelated, row.scores)):
        yield cell(IN_THE_FILES)
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if row.rank.undefined:
            reasons.setdefault(row.rank.undefined.replace(f"step {row.step}", "this step"), []).append(row.step)
    for reason, steps in reasons.items():
        yield cell(f"No rank at step{'s' * (len(steps) > 1)} {as_ranges(steps)}: {reason}")


def _rows(report: RankReport) -> tuple[list[_Row], str]:
    """A row a step at the largest group size, and the advantage: the logged one, or the first."""
    of_weights = [point for point in report.weight_curve if point.tensor is None]
    points: Sequence[_Point] = report.curve or report.token_curve or of_weights
    if points:
        name = _preferred([point.advantage for point in points])
        sized = sorted((p for p in points if p.advantage == name), key=lambda point: (point.step, point.group_size))
        return [_of_point(point) for point in {point.step: point for point in sized}.values()], name
    whole = [s for s in report.spectra if s.label.group_id is None and s.label.tensor is None]
    if not whole:
        return [], ""
    name = _preferred([spectrum.label.advantage for spectrum in whole])
    of_name = [spectrum for spectrum in whole if spectrum.label.advantage == name]
    of_name.sort(key=lambda spectrum: (spectrum.label.step, spectrum.label.group_size))
    return [_of_spectrum(one) for one in {one.label.step: one for one in of_name}.values()], name


def _preferred(names: Sequence[str]) -> str:
    return "logged" if "logged" in names else names[0]


def _of_point(point: _Point) -> _Row:
    ceiling: float | None = None
    if isinstance(point, RankCurvePoint):
        ceiling = point.group_size
    elif isinstance(point, TokenRankPoint):
        ceiling = point.num_rows.value
    nulls = {name: null.effective_rank for name, null in point.nulls.items()}
    return replace(_row(point.step, point.effective_rank, ceiling, nulls), num_live=point.num_groups - point.num_dead)


def _of_spectrum(spectrum: GradientSpectrum) -> _Row:
    return _row(spectrum.label.step, spectrum.ranks.effective_rank, min(spectrum.label.shape), spectrum.nulls)


def _row(step: int, rank: Estimate, ceiling: float | None, nulls: Mapping[str, Estimate]) -> _Row:
    return _Row(step=step, rank=rank, ceiling=ceiling, unrelated=nulls.get("gaussian"), scores=nulls.get("unweighted"))


def _rest(rows: Sequence[_Row], shown: Sequence[_Row]) -> str:
    seen = {row.step for row in shown}
    ranks = [row.rank.value for row in rows if row.step not in seen and row.rank.value is not None]
    between = f", with ranks from {min(ranks):.2f} to {max(ranks):.2f}" if ranks else ""
    return f"{len(shown)} of {len(rows)} steps; --show steps adds the other {len(rows) - len(shown)}{between}."


def _table(rows: Sequence[_Row], steps: Mapping[int, StepGeometry]) -> Table:
    columns: list[Column] = [("step", "right"), ("rank", "left")]
    ceilings = any(row.ceiling is not None for row in rows)
    columns += [("at most", "right")] * ceilings
    columns += [("unrelated rows", "right"), ("scores", "right")]
    columns += [("norm off by", "right")] * bool(steps)
    table = new_table(columns)
    for row in rows:
        cells = [str(row.step), _number(row.rank, interval=True)]
        cells += [UNDEFINED if row.ceiling is None else f"{row.ceiling:,.0f}"] * ceilings
        cells += [_number(row.unrelated), _number(row.scores)]
        cells += [_norm(steps.get(row.step))] * bool(steps)
        add_row(table, *cells)
    return table


def _number(estimate: Estimate | None, *, interval: bool = False) -> str:
    """A rank, or a dash; why there is none stands below the table in a sentence with its steps."""
    if estimate is None or not estimate.is_defined:
        return UNDEFINED
    return format_estimate(estimate, Footnotes(), "rank", interval=interval)


def _norm(step: StepGeometry | None) -> str:
    """How far the recomputed norm is from the trainer's, relative to it."""
    if step is None or step.grad_norm.value is None:
        return UNDEFINED
    if step.logged_grad_norm is None:
        return "not logged"
    if not math.isfinite(step.logged_grad_norm):
        return f"logged {non_finite_word(step.logged_grad_norm)}"
    difference = abs(step.grad_norm.value - step.logged_grad_norm)
    if difference == 0:
        return "0"
    return f"{difference / abs(step.logged_grad_norm):.1e}" if step.logged_grad_norm else "logged 0"

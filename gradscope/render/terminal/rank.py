"""The terminal output of `gradscope rank`: the verdict, a line a step, the meaning; other tables on request.

Letters: G group size, N rows of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group
from rich.text import Text

from gradscope.estimate import Estimate
from gradscope.render.terminal.answer import SCREEN_ROWS, Answer, Blocks
from gradscope.render.terminal.layout import draw, draw_table, losses
from gradscope.render.terminal.names import ALL
from gradscope.render.views.rank import ROLLOUT_VIEWS
from gradscope.render.views.rank_parts import PART_VIEWS, TRAJECTORY
from gradscope.render.views.view import Column, digits, unless_empty
from gradscope.render.words import FACTS, UNDEFINED, Footnotes, cell, no_interval
from gradscope.results.rank import RankCurvePoint, RankReport, StepGeometry, TokenRankPoint, WeightRankPoint, preferred
from gradscope.say import as_ranges, evenly, named_steps, non_finite_word

_Point = RankCurvePoint | TokenRankPoint | WeightRankPoint
_SUBJECTS = {
    "rollout": "of a group's rollouts",
    "hidden": "of a group's rollouts by the last hidden state",
    "logit": "of a group's rollouts by the logits",
    "advantage": "of a group's advantages",
    "token": "of a group's tokens",
    "weight": "of dL/dW of a group, mean over weights",
    "group": "of a step's groups",
}


_ROW_WORDS = {
    "rollout": "a rollout's gradient",
    "group": "the sum of a group's gradients",
    "token": "the gradient of one token of a group",
    "weight": "an output of one weight matrix",
    "hidden": "the gradient of a rollout or a token by the last hidden state",
    "logit": "the gradient of a rollout or a token by the logits",
    "advantage": "the advantages of one rollout, token by token",
    "update": "an output of one weight matrix's change between checkpoints",
}

_ROWS_OF = {
    **dict.fromkeys(("tokens", "energy", "corrections", "entropy", "kl", "turns", "logprobs", "sparsity"), "token"),
    **dict.fromkeys(("weights", "optimizers", "modules"), "weight"),
    **dict.fromkeys(("updates", "frames", "adapters"), "update"),
}
"""Name of a table -> the rows of the result that has it."""


class _Row(Struct, frozen=True, kw_only=True):
    """One step under one advantage."""

    step: int
    rank: Estimate
    ceiling: float | None  # most directions that so many rows can span; None: it differs from weight to weight
    unrelated: Estimate | None
    scores: Estimate | None
    num_live: int | None = None  # groups that the rank is the mean of; None: it is of one matrix


def rank_table(report: RankReport, show: Sequence[str] = ()) -> Group:
    """The verdict, ranks step by step, at most three findings and the names of further tables, which ``show`` adds."""
    return Answer(
        command="rank",
        headline=report.headline or ("No rank could be found.",),
        table=_answer(report, show_all="steps" in show or ALL in show),
        facts=losses([report.source]),
        findings=report.findings,
        views={name: partial(view, report) for name, view in _TABLES.items()},
        absent={name: f"--rows {rows} has it" for name, rows in _ROWS_OF.items() if rows != report.rows}
        | dict(report.missing_parts),
        tone="" if report.headline else "unknown",
    ).screen(show)


def _answer(report: RankReport, *, show_all: bool) -> Blocks:
    """The table of the answer, its omissions, and numbers that could not be computed."""
    if report.trajectories:
        notes = Footnotes()
        yield from draw(TRAJECTORY, report, notes)
        yield from map(cell, notes.lines())
    yield from _step_ranks(report, show_all=show_all)
    by_reason: dict[str, list[int]] = {}
    for step, reason in report.skipped.items():
        by_reason.setdefault(reason, []).append(step)
    reasons = list(by_reason.items())
    for reason, steps in reasons if show_all else reasons[:1]:
        left_out = f"Steps {as_ranges(steps)} were" if steps[1:] else f"Step {steps[0]} was"
        yield cell(f"{left_out} left out: {reason}")
    if len(reasons) > 1 and not show_all:
        rest = as_ranges(sorted(step for _, steps in reasons[1:] for step in steps))
        yield cell(f"So were {rest}; --show steps says why.")


def _formulations(report: RankReport, notes: Footnotes) -> Blocks:
    """The ranks under each formulation, and those left out, together whose reasons differ in their own name only."""
    yield from draw(ROLLOUT_VIEWS["formulations"], report, notes)
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in report.refused.items():
        names_by_reason.setdefault(reason.replace(f"'{name}'", "such").replace(name, "each"), []).append(name)
    for reason, names in names_by_reason.items():
        yield cell(f"left out: {', '.join(names)}. {reason if len(names) > 1 else report.refused[names[0]]}")


def _heldout(report: RankReport, notes: Footnotes) -> Blocks:
    yield from draw(ROLLOUT_VIEWS["heldout"], report, notes)
    for sentence in report.heldout_notes if report.heldout else ():
        notes.remark(sentence)


def _engine(report: RankReport, notes: Footnotes) -> Blocks:
    settings = (
        f"{key} {report.engine[key]}" for key in ("engine", "dtype", "precision", "device") if key in report.engine
    )
    below = [spectrum.ranks.frac_energy_below_floor.value for spectrum in report.spectra]
    shares = [share for share in below if share is not None]
    floor = f"under the noise floor: at most {max(shares):.1g} of a spectrum's energy" if shares else ""
    yield Text("\n").join(cell(line) for line in (_matrix(report), floor, ", ".join(settings)) if line)


_TABLES: Mapping[str, Callable[[RankReport, Footnotes], Blocks]] = {
    **{name: partial(draw, views) for name, views in {**ROLLOUT_VIEWS, **PART_VIEWS}.items()},
    "formulations": _formulations,
    "heldout": _heldout,
    "engine": _engine,
}
"""Name -> its tables; none where the result has nothing of it. ``steps`` and ``findings`` make the answer longer."""


def _step_ranks(report: RankReport, *, show_all: bool = False) -> Blocks:
    """The rank with its ceilings at every step, or at some, and a line each for undefined ranks and omitted steps."""
    rows, advantage = _rows(report)
    if not rows:
        return
    shown = rows if show_all else evenly(rows, SCREEN_ROWS)
    yield cell(f"Effective rank {_SUBJECTS[report.rows]}, advantage {advantage}")
    notes = Footnotes()
    steps = {step.step: step for step in report.steps}
    columns = (
        Column("step", digits("step"), "count"),
        Column("rank", lambda row: unless_empty(row.rank), "rank", ""),
        *([Column("at most", "ceiling", "count")] if any(row.ceiling is not None for row in shown) else []),
        Column("unrelated rows", lambda row: unless_empty(row.unrelated), "rank"),
        Column("scores", lambda row: unless_empty(row.scores), "rank"),
        *([Column("norm off by", lambda row: _norm(steps.get(row.step)), "count")] if steps else []),
    )
    yield draw_table(columns, shown, notes)
    if len(shown) < len(rows):
        seen, num_left = {row.step for row in shown}, len(rows) - len(shown)
        ranks = [row.rank.value for row in rows if row.step not in seen and row.rank.value is not None]
        between = f", with ranks from {min(ranks):.2f} to {max(ranks):.2f}" if ranks else ""
        yield cell(f"{len(shown)} of {len(rows)} steps; --show steps adds the other {num_left}{between}.")
    steps_by_reason: dict[str, list[int]] = {}
    for row in rows:
        if row.rank.is_defined and row.rank.interval is None:
            steps_by_reason.setdefault("" if row.num_live is None else no_interval(row.num_live), []).append(row.step)
    for reason, numbers in steps_by_reason.items():
        yield cell(f"No interval at {named_steps(numbers)}: {reason}" if reason else FACTS)
    yield from map(cell, notes.lines())
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if row.rank.undefined:
            reasons.setdefault(row.rank.undefined.replace(f"step {row.step}", "this step"), []).append(row.step)
    for reason, numbers in reasons.items():
        yield cell(f"No rank at {named_steps(numbers)}: {reason}")


def _rows(report: RankReport) -> tuple[list[_Row], str]:
    """A row a step at the largest group size, and the advantage: the logged one, or the first."""
    of_weights = [point for point in report.weight_curve if point.tensor is None]
    points: Sequence[_Point] = report.curve or report.token_curve or of_weights
    if points:
        name = preferred([point.advantage for point in points]) or ""
        sized = sorted((p for p in points if p.advantage == name), key=lambda point: (point.step, point.group_size))
        rows = []
        for point in {point.step: point for point in sized}.values():
            ceiling: float | None = point.group_size if isinstance(point, RankCurvePoint) else None
            if isinstance(point, TokenRankPoint):
                ceiling = point.num_rows.value
            nulls = {null: of_null.effective_rank for null, of_null in point.nulls.items()}
            row = _row(point.step, point.effective_rank, ceiling, nulls)
            rows.append(replace(row, num_live=point.num_groups - point.num_dead))
        return rows, name
    of_step = [s for s in report.spectra if s.label.group_id is None and s.label.tensor is None]
    name = preferred([spectrum.label.advantage for spectrum in of_step]) or ""
    of_name = [spectrum for spectrum in of_step if spectrum.label.advantage == name]
    of_name.sort(key=lambda spectrum: (spectrum.label.step, spectrum.label.group_size))
    return [
        _row(row.label.step, row.ranks.effective_rank, min(row.label.shape), row.nulls)
        for row in {row.label.step: row for row in of_name}.values()
    ], name


def _row(step: int, rank: Estimate, ceiling: float | None, nulls: Mapping[str, Estimate]) -> _Row:
    return _Row(step=step, rank=rank, ceiling=ceiling, unrelated=nulls.get("gaussian"), scores=nulls.get("unweighted"))


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


def _matrix(report: RankReport) -> str:
    words = f"A matrix row is {_ROW_WORDS[report.rows]}"
    if report.rows == "update":
        return words
    if not report.spectra:
        return f"{words}; no matrix could be formed"
    rows = sorted({spectrum.label.shape[0] for spectrum in report.spectra})
    columns = sorted({spectrum.label.shape[1] for spectrum in report.spectra})
    shape = " x ".join(f"{s[0]:,}" if len(s) == 1 else f"{s[0]:,} to {s[-1]:,}" for s in (rows, columns))
    centered = "rows centered" if report.spectra[0].label.centered else "rows not centered"
    return f"{words}; shape {shape}, {centered}"

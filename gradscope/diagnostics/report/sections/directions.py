"""How many directions has a group's gradient, beside its ceiling and what chance would give?

The rank of each group's rollout rows under the logged advantages, averaged over the live groups of a recomputed step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gradscope.advantages.registry import LOGGED
from gradscope.catalog.lookup import metric
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.diagnostics.rank.rows import step_rows
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_section
from gradscope.findings.rank import rank_verdict, sharing_findings, time_findings
from gradscope.render.views.rank import null_rank, num_live
from gradscope.render.views.view import Column, lines_over, tabulate
from gradscope.results.rank import RankCurvePoint
from gradscope.results.report import Chart, ReportSection, ReportTable, Severity

if TYPE_CHECKING:
    from gradscope.gradients.step.step_gram import StepGram

NAME = "rank"
QUESTION = "How many directions has a group's gradient?"

_NULLS = {"gaussian": "unrelated rows", "unweighted": "scores alone", "shuffled": "dealt anew"}
"""What a rank is read against, as tables and charts call it."""
_FEW = 0.5
"""Half of what unrelated rows span: from there on twice the rollouts of a prompt would add few directions."""


def directions_section(inputs: ReportInputs) -> ReportSection:
    """The rank of a group at each recomputed step, beside unrelated rows, the scores alone and the ceiling."""
    points = [point for point in inputs.curve if point.effective_rank.is_defined]
    if not points:
        return missing_section(NAME, QUESTION, inputs.no_grams)
    steps = ",".join(str(gram.step) for gram in inputs.grams)
    return directions_answer(points, inputs.command("rank", "--step", steps))


def directions_answer(points: Sequence[RankCurvePoint], command: str = "") -> ReportSection:
    """The same of ranks that were computed already, at least one and all defined; ``command`` looks closer."""
    last = points[-1]
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(rank_verdict(points), *time_findings(points), *sharing_findings(last)),
        severity=_severity(last),
        meaning=metric("effective_rank").meaning,
        next_step=_next_step(last),
        command=command,
        charts=_charts(points),
        tables=(_table(points),),
    )


def rank_points(grams: Iterable[StepGram]) -> tuple[RankCurvePoint, ...]:
    """The ranks of each step that has logged advantages, a point for each size of its groups."""
    return tuple(
        point
        for gram in grams
        if gram.policy_gram is not None
        for point in step_spectra(step_rows(gram), LOGGED, None, by_group=False)[1]
    )


def _severity(point: RankCurvePoint) -> Severity:
    ratio = point.nulls["gaussian"].ratio
    if not ratio.is_defined:
        return "unknown"
    return "look" if ratio.ends[1] < _FEW else "fine"


def _next_step(point: RankCurvePoint) -> str:
    if _severity(point) == "look":
        return (
            "The rollouts of a group pull nearly the same way: more rollouts of a prompt add little. More prompts a "
            "step, a higher temperature or harder prompts add directions."
        )
    if point.nulls["unweighted"].difference.side_of_zero < 0:
        return "The advantages take directions away: see below what others would have left."
    return "Nothing to do: the rollouts of a group differ about as much as their number allows."


def _charts(points: Sequence[RankCurvePoint]) -> tuple[Chart, ...]:
    """The course of the largest groups."""
    size = max(point.group_size for point in points)
    drawn = [point for point in points if point.group_size == size]
    ranks: dict[str, list[float | None]] = {"as trained": [point.effective_rank.value for point in drawn]}
    for name in ("gaussian", "unweighted"):
        ranks[_NULLS[name]] = [point.nulls[name].effective_rank.value for point in drawn]
    ranks["ceiling"] = [float(size)] * len(drawn)
    title = f"Effective rank of a group's gradient, of at most {size}"
    return lines_over([point.step for point in drawn], title, ranks, y_label="directions", y_range=(0.0, float(size)))


def _table(points: Sequence[RankCurvePoint]) -> ReportTable:
    return tabulate(
        "Mean over the live groups of a step; intervals resample groups. "
        f"rank = {metric('effective_rank').formula}. Unrelated rows: as many random rows of the same norms; scores "
        "alone: the same rollouts without their advantages; dealt anew: the advantages shuffled within the group",
        (
            Column("step", "step", "count"),
            Column("live groups", num_live, "count"),
            Column("rank", "effective_rank", "rank"),
            Column("at most", "group_size", "count"),
            *(Column(title, null_rank(name), "rank") for name, title in _NULLS.items()),
            Column("of unrelated", lambda point: point.nulls["gaussian"].ratio, "share"),
        ),
        points,
    )

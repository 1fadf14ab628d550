"""What share of groups, rollouts and tokens carries no gradient, of which kind, and where that is going."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.metrics_alone import dead_section
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.uncertainty.steps import trend
from gradscope.render.views.degeneracy import ENVIRONMENTS, prompts_view
from gradscope.render.views.view import Column, tabulate, view_table
from gradscope.results.degeneracy import DegeneracyReport, StepDegeneracy
from gradscope.results.report import Chart, ReportSection, ReportTable, Series, SeriesKind, Severity
from gradscope.rollouts.groups import RewardTable
from gradscope.say import interval, points

NAME = "signal"
QUESTION = "How much of the batch carries a gradient?"

MOST_PROMPTS = 200
"""Prompts that the page lists; a file of --output has all."""
_SHOWN = 80
"""Characters of a prompt; a longer one is cut."""
_ORDER: Sequence[Severity] = ("unknown", "fine", "look", "problem")
_MOST = 0.5
"""A share of dead groups that is surely above this costs more rollouts than it leaves."""
_MANY = 0.25
"""From a quarter on, resampling dead groups costs at least a third more rollouts, which is worth a look."""


def signal_section(inputs: ReportInputs) -> ReportSection:
    """Degenerate groups: share and kinds, what they cost, the trend, and the course over steps."""
    report = inputs.degeneracy
    if isinstance(report, Unavailable):
        return missing_section(NAME, QUESTION, report)
    return signal_answer(report, inputs.command("degeneracy"))


def signal_answer(report: DegeneracyReport, command: str = "") -> ReportSection:
    """The same of groups that were counted already; ``command`` looks closer."""
    if report.source.kind == "metrics":
        return dead_section(report.metrics, report.source)
    entry = metric("frac_reward_zero_std")
    advice = dead_group_advice(report)
    findings = [text for text in report.findings if text != advice]
    behind = 2 if report.is_in_conflict else 1  # the trend is that of the share of dead groups
    findings[behind:behind] = [text for text in (_trend(report),) if text]
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=tuple(findings),
        severity=max(map(_severity, (report.frac_reward_zero_std, report.frac_reward_conflict)), key=_ORDER.index),
        meaning=entry.meaning,
        next_step=advice,
        command=command,
        charts=(_course(report.by_step),) if len(report.by_step) > 1 else (),
        tables=(
            _kinds(report),
            *filter(None, _views(report)),
            *((_by_step(report.by_step),) if len(report.by_step) > 1 else ()),
        ),
    )


def dead_groups(table: RewardTable) -> NDArray[np.bool_]:
    """Which groups have rewards that are all known and equal, [J]."""
    complete = (table.size > 1) & (table.sums(np.isnan(table.reward)) == 0)
    return np.asarray(complete & (table.spread(table.reward) <= EQUAL_REWARDS), dtype=np.bool_)


def _severity(dead: Estimate) -> Severity:
    if dead.value is None:
        return "unknown"
    if dead.ends[0] > _MOST:
        return "problem"
    return "look" if dead.value >= _MANY else "fine"


def _trend(report: DegeneracyReport) -> str:
    shares = [(row.step, row.frac_reward_zero_std.value) for row in report.by_step]
    places = [step for step, value in shares if value is not None]
    change = trend(places, [value for _, value in shares if value is not None]).within(-1.0, 1.0)
    if change.value is None or len({value for _, value in shares}) == 1:
        return ""
    text = f"From step {places[0]} to {places[-1]} the share changes by {points(change.value)} points along its line"
    undecided = "" if change.side_of_zero else ", so its direction is undecided"
    return f"{text}{interval(change, points)}{undecided}."


def _course(steps: tuple[StepDegeneracy, ...]) -> Chart:
    kinds: dict[tuple[str, SeriesKind | None], list[float | None]] = {
        ("all fail", "all_fail"): [row.frac_all_fail.value for row in steps],
        ("all pass", "all_pass"): [row.frac_all_pass.value for row in steps],
        ("tied", "tied"): [row.frac_tied.value for row in steps],
    }
    drawn = {name: values for name, values in kinds.items() if any(values)}
    if not drawn:  # without a threshold there are no kinds, only equal rewards
        drawn = {("equal rewards", None): [row.frac_reward_zero_std.value for row in steps]}
    return Chart(
        title="Share of groups without a gradient",
        kind="stack",
        places=tuple(row.step for row in steps),
        series=tuple(Series(name=name, values=tuple(values), kind=kind) for (name, kind), values in drawn.items()),
        y_label="share of groups",
        y_range=(0.0, 1.0),
    )


def _kinds(report: DegeneracyReport) -> ReportTable:
    names = (
        *("frac_reward_zero_std", "frac_all_fail", "frac_all_pass", "frac_tied", "frac_reward_conflict"),
        *("iid_prediction", "jensen_gap"),
    )
    origins = {"iid_prediction": f", p: {report.pass_rate_origin}"}
    return tabulate(
        f"The whole log: {report.num_groups:,} groups, intervals resample prompts",
        (
            Column("what", "title"),
            Column("share [95 % interval]", lambda entry: getattr(report, entry.name), "share"),
            Column("formula", lambda entry: f"{entry.formula}{origins.get(entry.name, '')}"),
        ),
        [entry for entry in map(metric, names) if getattr(report, entry.name).is_defined],
    )


def _views(report: DegeneracyReport) -> Iterator[ReportTable | None]:
    """The tables that the terminal has, too."""
    caption = f"{len(report.by_prompt):,} prompts, first those never or always solved, by their number of rollouts"
    yield view_table(ENVIRONMENTS, report, "Each environment, data source or agent that rows name")
    yield view_table(prompts_view(MOST_PROMPTS, _SHOWN), report, caption)


def _by_step(steps: tuple[StepDegeneracy, ...]) -> ReportTable:
    return tabulate(
        "Each step",
        (
            Column("step", "step", "count"),
            Column("groups", "num_groups", "count"),
            Column("degenerate", lambda row: row.frac_reward_zero_std.value, "share"),
            Column("all fail", lambda row: row.frac_all_fail.value, "share"),
            Column("all pass", lambda row: row.frac_all_pass.value, "share"),
            Column("tied", lambda row: row.frac_tied.value, "share"),
            Column("pass rate", lambda row: row.pass_rate.value, "share"),
        ),
        steps,
        by_step=True,
    )

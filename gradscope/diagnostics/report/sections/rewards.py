"""Which reward function makes the advantage, and does one of them dominate or tie groups?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_section
from gradscope.findings.degeneracy import conflict_advice, conflict_sentence, signed_percent
from gradscope.render.views.degeneracy import REWARDS
from gradscope.render.views.view import lines_over, view_table
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.report import Chart, ReportColumn, ReportSection, ReportTable, Severity
from gradscope.results.signal import RewardFunction
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.say import interval, percent, with_interval

Array = NDArray[np.float64]

NAME = "rewards"
QUESTION = "Which reward function makes the advantage?"
_FORMULA = f"squared advantage: {metric('by_reward.advantage_share').formula}; intervals resample prompts"


def rewards_section(inputs: ReportInputs) -> ReportSection:
    """Each reward function's share of the squared advantage, its ties, and its mean over steps."""
    report = inputs.degeneracy
    if isinstance(report, Unavailable):
        return missing_section(NAME, QUESTION, report)
    names = list(reward_table(inputs.run.groups).rewards)
    if not names:
        hint = "TRL writes one column a reward function with log_completions=True; give reward functions names."
        return missing_section(NAME, QUESTION, Unavailable(reason="The log has no reward per function.", hint=hint))
    if not report.by_reward:
        only = f"There is one reward function, '{names[0]}': it makes all of the advantage."
        return ReportSection(name=NAME, question=QUESTION, findings=(only,), severity="fine")
    functions = [one for one in report.by_reward if one.weight != 0]
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=tuple(_findings(report, functions)),
        severity=_severity(report, functions),
        meaning=metric("by_reward.advantage_share").meaning,
        next_step=_next_step(report, functions),
        command=inputs.command("degeneracy", "--show", "rewards"),
        charts=_charts(reward_table(inputs.run.groups), [one.name for one in functions]),
        tables=(*filter(None, (view_table(REWARDS, report, _FORMULA),)), *_correlations(functions)),
    )


def _severity(report: DegeneracyReport, functions: list[RewardFunction]) -> Severity:
    if report.is_in_conflict:
        return "problem" if report.frac_reward_conflict.ends[0] > 0.5 else "look"
    is_idle = any(one.frac_tied.value == 1 for one in functions)
    return "look" if report.reward_conflict or is_idle or not functions else "fine"


def _findings(report: DegeneracyReport, functions: list[RewardFunction]) -> Iterator[str]:
    conflict = () if report.reward_conflict is None else (conflict_sentence(report.reward_conflict),)
    if report.is_in_conflict and report.reward_conflict is not None:  # the page begins with the conflict itself
        main = next(one for one in report.by_reward if one.name == report.reward_conflict.main)
        yield f"'{main.name}' is tied in {with_interval(main.frac_tied, percent)} of the groups."
    else:
        yield from conflict
    for kind, what in (("advantage_share", "squared advantage"), ("difference_share", "squared reward differences")):
        shares = {one.name: share for one in functions if (share := getattr(one, kind)).value is not None}
        if shares:
            top = max(shares, key=lambda name: shares[name].value or 0.0)
            whose = f", by {report.advantages_of}" if kind == "advantage_share" else ""
            value = signed_percent(shares[top].value or 0.0)
            yield f"'{top}' makes {value}{interval(shares[top], signed_percent)} of the {what}{whose}."
            break
    else:
        yield f"What each makes is not known: {report.by_reward[0].difference_share.undefined}."
    if report.is_in_conflict:
        yield from conflict
    for one in functions:
        if one.num_alone and report.reward_conflict is None:
            yield f"'{one.name}' alone differs in {one.num_alone:,} of {report.num_groups:,} groups."
        if one.frac_tied.value == 1:
            yield f"'{one.name}' is tied in every group: it adds no gradient."
    beside = [one.name for one in report.by_reward if one.weight == 0]
    if beside:
        yield f"Logged beside the reward and no part of it: {', '.join(beside)}."


def _next_step(report: DegeneracyReport, functions: list[RewardFunction]) -> str:
    if report.reward_conflict is not None:
        return conflict_advice(report.reward_conflict)
    if report.frac_reward_conflict.undefined and len(functions) > 1:
        return f"Whether side rewards decide groups is undefined: {report.frac_reward_conflict.undefined}."
    return "If one makes more of the gradient than it should, change its weight (reward_weights in TRL)."


def _charts(table: RewardTable, names: list[str]) -> tuple[Chart, ...]:
    steps = np.unique(table.step).tolist()
    of_rollout = np.repeat(table.step, table.size)
    means = {name: [_mean(table.rewards[name][of_rollout == step]) for step in steps] for name in names}
    return lines_over(steps, "Mean of each reward function", means, y_label="mean reward")


def _mean(rewards: Array) -> float | None:
    known = rewards[~np.isnan(rewards)]
    return float(np.mean(known)) if len(known) else None


def _correlations(functions: list[RewardFunction]) -> tuple[ReportTable, ...]:
    names = [one.name for one in functions]
    rows = tuple(
        (one.name, other, one.correlation[other]) for at, one in enumerate(functions) for other in names[at + 1 :]
    )
    if not rows:
        return ()
    return (
        ReportTable(
            caption=f"Correlation within groups = {metric('by_reward.correlation').formula}",
            columns=(
                *(ReportColumn(title=title) for title in ("reward function", "and")),
                ReportColumn(title="correlation", style="gap"),
            ),
            rows=rows,
        ),
    )

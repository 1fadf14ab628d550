"""How stale are the weights that sampled?"""

from __future__ import annotations

from gradscope.catalog.lookup import metric
from gradscope.diagnostics.report.sections.inputs import ReportInputs, missing_part
from gradscope.results.logged.course import Staleness, StalenessNumbers
from gradscope.results.report import Chart, Column, ReportSection, ReportTable, Series
from gradscope.say import percent, with_interval

NAME = "staleness"
QUESTION = "How stale are the weights that sampled?"

_FRESH = 1.0
"""Updates behind on average; one is what sampling ahead of training by a batch costs."""


def staleness_section(inputs: ReportInputs) -> ReportSection:
    """The lags of rollouts, and what sampler and trainer differ by at each."""
    staleness = inputs.logged.staleness
    if staleness.overall is None:
        return missing_part(NAME, QUESTION, staleness)
    overall = staleness.overall
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(_finding(overall),),
        severity="look" if (overall.mean_lag.value or 0.0) > _FRESH else "fine",
        meaning=metric("staleness.mean_lag").meaning,
        next_step=_next_step(staleness, overall),
        charts=_charts(staleness),
        tables=(_by_lag(staleness),),
    )


def _finding(overall: StalenessNumbers) -> str:
    return (
        f"The weights that sampled {overall.num_rollouts:,} rollouts were {with_interval(overall.mean_lag, '.2f')} "
        f"updates behind on average and {with_interval(overall.max_lag, '.0f')} at most; "
        f"{with_interval(overall.frac_above_1, percent)} lag by more than one, and during "
        f"{with_interval(overall.frac_mixed, percent)} of them the weights changed."
    )


def _next_step(staleness: Staleness, overall: StalenessNumbers) -> str:
    if overall.max_lag.value == 0:
        return "Nothing to do: rollouts were started with the weights that were updated."
    if sum(row.logprob_gap.is_defined for row in staleness.by_lag) > 1:
        return (
            "Where the gap grows with the lag, bound the staleness (max_off_policy_steps in prime-rl) or correct with "
            "importance sampling; where it does not, the lag is harmless."
        )
    return "Log the log-probabilities of sampler and trainer as well: they tell whether the lag does harm."


def _charts(staleness: Staleness) -> tuple[Chart, ...]:
    if len(staleness.by_step) < 2:
        return ()
    return (
        Chart(
            title="Updates behind",
            kind="lines",
            places=tuple(row.step or 0 for row in staleness.by_step),
            series=(
                Series(name="mean", values=tuple(row.mean_lag.value for row in staleness.by_step)),
                Series(name="largest", values=tuple(row.max_lag.value for row in staleness.by_step)),
            ),
            y_label="updates behind",
        ),
    )


def _by_lag(staleness: Staleness) -> ReportTable:
    with_gaps = any(row.logprob_gap.is_defined for row in staleness.by_lag)
    return ReportTable(
        caption="Rollouts by lag" + f"; mean gap = {metric('logprob_gap').formula}" * with_gaps,
        columns=(
            Column(title="updates behind", style="count"),
            Column(title="rollouts", style="count"),
            Column(title="share", style="share"),
            *((Column(title="mean gap", style="norm"),) * with_gaps),
        ),
        rows=tuple(
            (row.lag, row.num_rollouts, row.share, *((row.logprob_gap,) * with_gaps)) for row in staleness.by_lag
        ),
    )

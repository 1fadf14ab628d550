"""Degenerate groups as a table: the overall shares, other group sizes, and the course over steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from gradscope.estimate import Estimate
from gradscope.render.terminal.degeneracy_signal import advantage_table, cost_table, target_table, ties_table
from gradscope.render.terminal.layout import add_row, document, formulas, heading, new_table, source_line
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import plain
from gradscope.render.words.numbers import Footnotes, Style, format_estimate, format_number
from gradscope.results.degeneracy import DegeneracyReport, StepDegeneracy

MOST_STEPS = 20
"""A longer run shows its steps as sparklines only; every step is in the JSON and the CSV."""


def degeneracy_table(report: DegeneracyReport) -> Group:
    """Overall shares with intervals, then by group size, then over steps, then what it means."""
    notes = Footnotes()
    size = f"groups of {report.group_size}" if report.group_size else "groups of unequal size"
    threshold = report.success_threshold
    head = heading(
        "Degenerate groups",
        source_line(report.source),
        f"{report.num_groups:,} {size}, {report.num_rollouts:,} rollouts, reward '{report.reward}'"
        + (f", success at {threshold:g} or more" if threshold is not None else ""),
        f"p of the i.i.d. prediction: {report.pass_rate_origin}",
    )
    blocks: list[RenderableType] = [_overall(report, notes)]
    if len(report.by_group_size) > 1:
        blocks.append(_by_group_size(report, notes))
    if report.by_policy:
        blocks.append(_by_policy(report, notes))
    if report.target is not None:
        blocks.append(target_table(report.target, notes))
    blocks += [cost_table(report.starvation, notes), advantage_table(report.advantages, notes)]
    if report.by_reward:
        blocks.append(ties_table(report.by_reward, notes))
    if len(report.by_step) > 1:
        blocks.append(_course(report.by_step))
    if 1 < len(report.by_step) <= MOST_STEPS:
        blocks.append(_by_step(report.by_step, notes))
    blocks.append(formulas("frac_reward_zero_std", "iid_prediction", "jensen_gap"))
    return document(head, blocks, notes, report.findings)


_Row = tuple[str, Estimate, Style, str | None]


def _before_filter(share: Estimate) -> list[_Row]:
    return [("  among all that were sampled", share, "share", None)] if share.is_defined else []


def _overall(report: DegeneracyReport, notes: Footnotes) -> Table:
    table = new_table([("", "left"), ("share [95 % interval]", "left"), ("units", "right")])
    split = report.gap_decomposition
    rows: list[_Row] = [
        ("degenerate groups", report.frac_reward_zero_std, "share", "bold"),
        *_before_filter(report.behind_filter.frac_zero_std_sampled),
        ("  all fail", report.frac_all_fail, "share", None),
        ("  all pass", report.frac_all_pass, "share", None),
        ("  tied, neither pass nor fail", report.frac_tied, "share", None),
        ("pass rate p", report.pass_rate, "share", None),
        ("i.i.d. prediction", report.iid_prediction, "share", None),
        *(
            (f"  with {_short(row.pass_rate_origin)}", row.iid_prediction, "share", None)
            for row in report.predictions[1:]
        ),
        ("Jensen gap", report.jensen_gap, "gap", None),
        ("  over the prediction", report.relative_gap, "rank", None),
        ("  between prompts", split.between_prompts, "gap", None),
        ("  over time", split.over_time, "gap", None),
    ]
    for name, estimate, style, emphasis in rows:
        add_row(table, name, format_estimate(estimate, notes, style), str(estimate.num_units), style=emphasis)
    return table


def _short(origin: str) -> str:
    """The p of a prediction, short enough for a row."""
    return origin.split(" over ")[0].replace("the mean of", "p of").replace("the given base pass rate,", "p =")


def _by_group_size(report: DegeneracyReport, notes: Footnotes) -> Table:
    table = new_table(
        [("G", "right"), ("degenerate", "left"), ("i.i.d.", "left"), ("gap", "left"), ("how", "left")],
    )
    for row in report.by_group_size:
        add_row(
            table,
            str(row.group_size),
            format_estimate(row.degeneracy, notes, "share"),
            format_estimate(row.iid_prediction, notes, "share", interval=False),
            format_estimate(row.jensen_gap, notes, "gap"),
            row.method,
        )
    return table


def _by_policy(report: DegeneracyReport, notes: Footnotes) -> Table:
    table = new_table([("policy", "left"), ("groups", "right"), ("degenerate", "left"), ("pass rate", "left")])
    for row in report.by_policy:
        shares = (row.frac_reward_zero_std, row.pass_rate)
        add_row(
            table,
            plain(row.policy, limit=28),
            str(row.num_groups),
            *(format_estimate(share, notes, "share") for share in shares),
        )
    return table


def _course(steps: Sequence[StepDegeneracy]) -> Table:
    table = new_table([(f"steps {steps[0].step} to {steps[-1].step}", "left"), ("0 to 1", "left"), ("last", "right")])
    series = {
        "degenerate": [row.frac_reward_zero_std.value for row in steps],
        "  all fail": [row.frac_all_fail.value for row in steps],
        "  all pass": [row.frac_all_pass.value for row in steps],
        "pass rate": [row.pass_rate.value for row in steps],
    }
    for name, values in series.items():
        last = next((value for value in reversed(values) if value is not None), None)
        if last is not None:
            add_row(table, name, sparkline(values, low=0.0, high=1.0), format_number(last, "share"))
    return table


def _by_step(steps: Sequence[StepDegeneracy], notes: Footnotes) -> Table:
    """Every step or window; the last column only where the trainer logged its own share."""
    titles = ["step", "groups", "degenerate", "fail", "pass", "tied", "p", "i.i.d.", "gap"]
    logs = any(row.logged is not None for row in steps)
    table = new_table([(title, "right") for title in ([*titles, "logged"] if logs else titles)])
    for row in steps:
        shares = (row.frac_reward_zero_std, row.frac_all_fail, row.frac_all_pass, row.frac_tied, row.pass_rate)
        add_row(
            table,
            str(row.step) if row.step == row.last_step else f"{row.step}-{row.last_step}",
            str(row.num_groups),
            *(format_estimate(share, notes, "share", interval=False) for share in (*shares, row.iid_prediction)),
            format_estimate(row.jensen_gap, notes, "gap", interval=False),
            *([_logged(row, notes)] if logs else []),
        )
    return table


def _logged(row: StepDegeneracy, notes: Footnotes) -> str:
    if row.logged is None:
        return notes.mark("the trainer logged no share that covers this step's groups")
    return format_number(row.logged, "share")

"""Tables about the signal: what dead groups cost, what each formulation makes of rewards, and plans for a target."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from gradscope.estimate import Estimate
from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.views.view import MOST_ROWS
from gradscope.render.words.escape import plain
from gradscope.render.words.numbers import IN_THE_FILES, UNDEFINED, Footnotes, Style, format_estimate, format_number
from gradscope.results.envelope import LazyRows
from gradscope.results.signal import AdvantageMass, RewardFunction, SignalCost, TargetDegeneracy


def cost_table(cost: SignalCost, notes: Footnotes) -> Table:
    """What the degenerate groups cost."""
    table = new_table([("what degenerate groups cost", "left"), ("[95 % interval]", "left")])
    rows: list[tuple[str, Estimate, Style]] = [
        ("rollouts without a gradient", cost.frac_rollouts, "share"),
        ("completion tokens without a gradient", cost.frac_tokens, "share"),
        ("generation time without a gradient", cost.frac_generation_time, "share"),
        ("rollouts a step", cost.batch_size, "rank"),
        ("  that count", cost.effective_batch_size, "rank"),
        ("scale of a loss averaged over all rollouts", cost.dilution, "share"),
        ("groups to sample for each live one", cost.resampling_factor, "rank"),
    ]
    for name, estimate, style in rows:
        # Few logs time their rollouts: a dash would stand in nearly every table.
        if estimate is not cost.frac_generation_time or estimate.value is not None:
            add_row(table, name, format_estimate(estimate, notes, style))
    return table


def advantage_table(masses: Sequence[AdvantageMass], notes: Footnotes) -> Table:
    """What each formulation would have fed to the optimizer."""
    table = new_table(
        [
            ("advantage on these rewards", "left"),
            ("mean max(A, 0)", "right"),
            ("mean max(-A, 0)", "right"),
            ("A = 0", "right"),
        ]
    )
    for mass in masses:
        shares = (mass.positive_mass, mass.negative_mass, mass.frac_zero)
        add_row(table, mass.advantage, *(format_estimate(share, notes, "share", interval=False) for share in shares))
    return table


def rewards_table(rows: Sequence[RewardFunction], notes: Footnotes) -> Table:
    """Each reward function: weight, ties, share of the squared advantage and differences, groups it alone decides."""
    titles = ("reward function", "weight", "tied", "squared\nadvantage", "squared\ndifferences", "alone")
    table = new_table([(title, "right" if place else "left") for place, title in enumerate(titles)])
    for row in rows:
        add_row(
            table,
            plain(row.name, limit=24),
            UNDEFINED if row.weight is None else format_number(row.weight, "norm"),
            *(
                format_estimate(share, notes, "share", interval=False)
                for share in (row.frac_tied, row.advantage_share, row.difference_share)
            ),
            str(row.num_alone),
        )
    notes.remark(IN_THE_FILES)
    return table


def prompts_table(rows: LazyRows, notes: Footnotes) -> Table:
    """The prompts that took the most rollouts and are not live, as many as a screen holds."""
    titles = ("prompt", "groups", "rollouts", "pass\nrate", "status", "first\nstep", "last\nlive")
    table = new_table([(title, "right" if place else "left") for place, title in enumerate(titles)])
    for row in rows[:MOST_ROWS]:
        last = row["last_live_step"]
        add_row(
            table,
            plain(row["prompt"] or row["prompt_id"], limit=28),
            str(row["num_groups"]),
            str(row["num_rollouts"]),
            UNDEFINED if row["pass_rate"] is None else format_number(row["pass_rate"], "share"),
            row["status"] or UNDEFINED,
            str(row["first_step"]),
            UNDEFINED if last is None else str(last),
        )
    if len(rows) > MOST_ROWS:
        notes.remark(f"{len(rows) - MOST_ROWS:,} more prompts: --output DIR writes all of them as CSV and JSON")
    return table


def target_table(target: TargetDegeneracy, notes: Footnotes) -> Table:
    """Ways to a target share of degenerate groups."""
    table = new_table(
        [
            (f"to {100 * target.target:g} % dead", "left"),
            ("group\nsize", "right"),
            ("no gradient", "left"),
            ("rollouts\na group", "right"),
            ("tokens\na group", "right"),
            ("how", "left"),
        ]
    )
    for plan in target.plans:
        add_row(
            table,
            plan.plan,
            "" if plan.group_size is None else str(plan.group_size),
            format_estimate(plan.degeneracy, notes, "share"),
            format_estimate(plan.rollouts_per_group, notes, "rank", interval=False),
            format_estimate(plan.tokens_per_group, notes, "count", interval=False),
            plan.method,
        )
    return table

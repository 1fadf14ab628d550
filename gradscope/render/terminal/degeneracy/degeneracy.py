"""Degenerate groups: the verdict, the shares with their course over steps, and further tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.estimate import Estimate
from gradscope.render.terminal.answer import Blocks, Views, answer
from gradscope.render.terminal.degeneracy.as_logged import as_logged_table
from gradscope.render.terminal.degeneracy.signal import (
    advantage_table,
    cost_table,
    prompts_table,
    rewards_table,
    target_table,
)
from gradscope.render.terminal.layout import Column, add_row, new_table, rows_set_aside
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import IN_THE_FILES, UNDEFINED, Footnotes, Style, format_estimate, format_number
from gradscope.results.degeneracy import (
    DegeneracyReport,
    EnvironmentDegeneracy,
    PolicyDegeneracy,
    PromptCounts,
    StepDegeneracy,
)
from gradscope.say import percent

MOST_STEPS = 80
"""Of more, ``--show steps`` joins neighbors, so that the table stays readable; each is in the JSON and the CSV."""
_JOINED = 20
"""Rows of such a table."""


def degeneracy_table(report: DegeneracyReport, show: Sequence[str] = ()) -> Group:
    """The verdict, the shares with their course, what was asked for, at most three findings.

    Args:
        report: What was measured.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints.
    """
    if report.source.kind == "metrics":
        return as_logged_table(report, show)
    size = f"groups of {report.group_size}" if report.group_size else "groups of unequal size"
    what = f"{report.num_groups:,} {size}, {report.num_rollouts:,} rollouts"
    threshold = "" if report.success_threshold is None else f", success at {report.success_threshold:g} or more"
    dead = report.frac_reward_zero_std.value
    return answer(
        "degeneracy",
        report.findings or ("No group has rewards to compare.",),
        _answer(report),
        facts=[
            f"{what}, reward '{report.reward}'{threshold}{rows_set_aside(report.source)}",
        ],
        findings=report.findings[1:],
        views=_views(report),
        show=show,
        tone="problem" if dead == 1 or report.is_in_conflict else "fine" if dead == 0 else "",
    )


def _views(report: DegeneracyReport) -> Views:
    """The further tables; none of what the log does not have."""
    several = len(report.by_step) > 1
    return {
        "shares": lambda notes: [
            cell(f"p of the i.i.d. prediction: {report.pass_rate_origin}"),
            _overall(report, notes),
        ],
        "steps": lambda notes: [_by_step(report, notes)] if several and not _is_windows(report) else [],
        "cost": lambda notes: [cost_table(report.starvation, notes)],
        "advantages": lambda notes: [advantage_table(report.advantages, notes)],
        "rewards": lambda notes: [rewards_table(report.by_reward, notes)] if report.by_reward else [],
        "prompts": lambda notes: [prompts_table(report.by_prompt, notes)],
        "environments": lambda notes: (
            [_parts("environment", [(row.environment, row) for row in report.by_environment], notes)]
            if report.by_environment
            else []
        ),
        "policies": lambda notes: (
            [_parts("policy", [(row.policy, row) for row in report.by_policy], notes)] if report.by_policy else []
        ),
    }


def _is_windows(report: DegeneracyReport) -> bool:
    """Whether the course was asked for by window, at most ten of them: then it is part of the answer."""
    return any(row.step != row.last_step for row in report.by_step)


def _answer(report: DegeneracyReport) -> Blocks:
    notes = Footnotes()
    units = report.frac_reward_zero_std.num_units
    yield _shares(report, notes, f"share of groups [95 %\ninterval, {units:,} prompts]")
    yield cell(_prompts(report.prompts, report.reward))
    if len(report.by_group_size) > 1:
        yield from (Text(), _by_group_size(report, notes))
    if report.target is not None:
        yield from (Text(), target_table(report.target, notes))
    if _is_windows(report):
        yield from (Text(), _by_step(report, notes))
    yield from map(cell, notes.lines())


def _prompts(counts: PromptCounts, reward: str) -> str:
    """How many prompts the policy learns from, in a line; by which reward where it is not the reported one."""
    whose = "" if counts.reward == reward else f" by '{plain(counts.reward, limit=28)}'"
    if counts.never is None or counts.always is None:
        return f"Prompts: {counts.live:,} had a group whose rewards differed."
    lost = counts.never + counts.always
    share = f" ({percent(counts.frac_rollouts)} of rollouts)" if lost else ""
    return (
        f"Prompts{whose}: {counts.never:,} never pass, {counts.always:,} always pass{share}, {counts.live:,} are live."
    )


def _shares(report: DegeneracyReport, notes: Footnotes, title: str) -> Table:
    """What a person asks first, each beside its course over the steps."""
    steps, several = report.by_step, len(report.by_step) > 1
    columns: list[Column] = [("", "left"), (title, "left")]
    if several:
        columns += [(f"steps {steps[0].step} to {steps[-1].last_step},\nfrom 0 to 1", "left"), ("last", "right")]
    table = new_table(columns)
    rows: list[tuple[str, Estimate, Style, list[Estimate]]] = [
        ("no gradient", report.frac_reward_zero_std, "share", [row.frac_reward_zero_std for row in steps]),
        *(
            (name, share, "share", [])
            for name, share, _, _ in _before_filter(report.behind_filter.frac_zero_std_sampled)
        ),
        ("  all pass", report.frac_all_pass, "share", [row.frac_all_pass for row in steps]),
        ("  all fail", report.frac_all_fail, "share", [row.frac_all_fail for row in steps]),
        ("  tied between", report.frac_tied, "share", [row.frac_tied for row in steps]),
        ("side rewards alone", report.frac_reward_conflict, "share", []),
        ("pass rate", report.pass_rate, "share", [row.pass_rate for row in steps]),
    ]
    for name, estimate, style, course in rows:
        if not estimate.is_defined or (name in _SELDOM and not estimate.value):
            continue  # said once below; and most rewards are 0 and 1
        cells = [name, format_estimate(estimate, notes, style)]
        values = [one.value for one in course]
        last = next((value for value in reversed(values) if value is not None), None)
        drawn = ["", ""]
        if last is not None:
            drawn = [sparkline(values, low=0.0, high=1.0, width=_WIDTH), format_number(last, style)]
        add_row(table, *cells, *(drawn if several else ()), style="bold" if name == "no gradient" else None)
    undefined: dict[str, list[str]] = {}
    for name, estimate, _, _ in rows:
        if estimate.undefined and name not in _SELDOM:
            undefined.setdefault(estimate.undefined, []).append(name.strip())
    for reason, names in undefined.items():
        notes.remark(f"No {', '.join(names)}: {reason}")
    return table


_SELDOM = ("  tied between", "side rewards alone")
"""Rows that stand only where there are such groups."""
_WIDTH = 26
"""Of a course over steps, in characters."""
_Row = tuple[str, Estimate, Style, str | None]


def _before_filter(share: Estimate) -> list[_Row]:
    return [("  of all sampled", share, "share", None)] if share.is_defined else []


def _overall(report: DegeneracyReport, notes: Footnotes) -> Table:
    table = new_table([("", "left"), ("share [95 % interval]", "left"), ("units", "right")])
    split = report.gap_decomposition
    rows: list[_Row] = [
        ("no gradient", report.frac_reward_zero_std, "share", "bold"),
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
    titles = ("group\nsize", "no gradient", "i.i.d.\nprediction", "Jensen gap", "how")
    table = new_table([(title, "left" if place else "right") for place, title in enumerate(titles)])
    for row in report.by_group_size:
        add_row(
            table,
            str(row.group_size),
            format_estimate(row.degeneracy, notes, "share"),
            format_estimate(row.iid_prediction, notes, "share", interval=False),
            format_estimate(row.jensen_gap, notes, "gap"),
            row.method,
        )
    notes.remark(f"i.i.d.: p is {report.pass_rate_origin}; intervals are in the CSV")
    return table


def _parts(title: str, rows: Sequence[tuple[str, EnvironmentDegeneracy | PolicyDegeneracy]], notes: Footnotes) -> Table:
    table = new_table([(title, "left"), ("groups", "right"), ("no gradient", "left"), ("pass rate", "left")])
    for name, row in rows:
        shares = (row.frac_reward_zero_std, row.pass_rate)
        add_row(
            table,
            plain(name, limit=28),
            str(row.num_groups),
            *(format_estimate(share, notes, "share") for share in shares),
        )
    return table


def _by_step(report: DegeneracyReport, notes: Footnotes) -> Table:
    """Every step or window, of many steps neighbors together; the last column only where the trainer logged its own."""
    steps = report.by_step
    whole = len(steps) <= MOST_STEPS
    columns = [
        (title, name, style)
        for title, name, style in _COLUMNS
        if (whole or name not in _OF_ONE_STEP) and any(getattr(row, name).is_defined for row in steps)
    ]
    logs = whole and any(row.logged is not None for row in steps)
    titles = ["step", "groups", *(title for title, _, _ in columns), *["logged"] * logs]
    table = new_table([(title, "right") for title in titles])
    for rows in [(row,) for row in steps] if whole else _joined(steps):
        first, last = rows[0].step, rows[-1].last_step
        add_row(
            table,
            str(first) if first == last else f"{first}-{last}",
            str(sum(row.num_groups for row in rows)),
            *(_mean(rows, name, style, notes) for _, name, style in columns),
            *([_logged(rows[0], notes)] if logs else []),
        )
    if not whole:
        notes.remark(
            f"Each row joins about {len(steps) / _JOINED:.0f} steps, a mean over their groups. --by window has "
            "intervals; the JSON and the CSV have each step."
        )
    if any(name == "iid_prediction" for _, name, _ in columns):
        notes.remark(f"i.i.d. by step: p is {report.course_pass_rate_origin}")
    notes.remark(IN_THE_FILES)
    return table


_COLUMNS: tuple[tuple[str, str, Style], ...] = (
    ("no\ngradient", "frac_reward_zero_std", "share"),
    ("fail", "frac_all_fail", "share"),
    ("pass", "frac_all_pass", "share"),
    ("tied", "frac_tied", "share"),
    ("pass\nrate", "pass_rate", "share"),
    ("i.i.d.", "iid_prediction", "share"),
    ("gap", "jensen_gap", "gap"),
)
"""Title, field and style of a column over steps; one that is nowhere defined is left out."""
_OF_ONE_STEP = {"iid_prediction", "jensen_gap"}
"""No means over groups: several steps have them at their own pass rate alone. Of the others the mean by the number of
groups is that of all the groups."""


def _joined(steps: Sequence[StepDegeneracy]) -> list[Sequence[StepDegeneracy]]:
    edges = [len(steps) * edge // _JOINED for edge in range(_JOINED + 1)]
    return [steps[start:stop] for start, stop in pairwise(edges)]


def _mean(rows: Sequence[StepDegeneracy], name: str, style: Style, notes: Footnotes) -> str:
    if len(rows) == 1:
        return format_estimate(getattr(rows[0], name), notes, style, interval=False)
    known = [(value, row.num_groups) for row in rows if (value := getattr(row, name).value) is not None]
    if not known:
        return UNDEFINED
    return format_number(sum(value * number for value, number in known) / sum(number for _, number in known), style)


def _logged(row: StepDegeneracy, notes: Footnotes) -> str:
    if row.logged is None:
        return notes.mark("the trainer logged no share that covers this step's groups")
    return format_number(row.logged, "share")

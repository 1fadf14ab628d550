"""Degenerate groups: the verdict, the shares with their course over steps, and further tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.estimate import Estimate, mean_of_defined
from gradscope.render.terminal.answer import SCREEN_ROWS, Answer, Blocks
from gradscope.render.terminal.layout import draw, draw_table, losses, rows_set_aside
from gradscope.render.terminal.names import ALL
from gradscope.render.views.degeneracy import ADVANTAGES, ENVIRONMENTS, POLICIES, REWARDS, SIZES, prompts_view
from gradscope.render.views.view import MAX_ROWS, Column, Sparkline, View, digits
from gradscope.render.words import UNDEFINED, Footnotes, Style, cell, format_estimate, format_number, plain
from gradscope.results.degeneracy import DegeneracyReport, PromptCounts, StepDegeneracy
from gradscope.results.logged import MetricCourse
from gradscope.say import counted, percent

MAX_STEPS = 80
"""Of more, ``--show steps`` joins neighbors, so that the table stays readable; each is in the JSON and the CSV."""
_JOINED = 20  # rows of such a table
_WIDTH, _WIDTH_AS_LOGGED = 26, 16  # of a course over steps, in characters
_ROWS_AS_LOGGED = SCREEN_ROWS - 2
"""Of an answer from metrics alone, which also lists what rollouts would add; its findings say more than a course."""


def degeneracy_table(report: DegeneracyReport, show: Sequence[str] = ()) -> Group:
    """The verdict, the shares with their course, at most three findings; ``show`` adds tables."""
    if report.source.kind == "metrics":
        return Answer(
            command="degeneracy",
            headline=report.findings,
            table=_metrics_by_step(report, report.metrics[:_ROWS_AS_LOGGED]),
            facts=losses([report.source]),
            findings=report.findings[1:],
            views={
                "steps": lambda notes: _steps_as_logged(report, notes),
                "metrics": lambda _: (
                    _metrics_by_step(report, report.metrics) if len(report.metrics) > _ROWS_AS_LOGGED else ()
                ),
            },
            tone="problem" if report.frac_reward_zero_std.value == 1 else "",
        ).screen(show)
    size = report.group_size or "unequal size"
    counts = f"{counted(report.num_groups, 'group')} of {size}, {counted(report.num_rollouts, 'rollout')}"
    threshold = "" if report.success_threshold is None else f", success at {report.success_threshold:g} or more"
    dead = report.frac_reward_zero_std.value
    optional = {
        **{"steps": _has_steps(report), "rewards": report.by_reward, "prompts": report.by_prompt},
        **{"policies": report.by_policy, "environments": report.by_environment},
    }
    return Answer(
        command="degeneracy",
        headline=report.summary,
        table=_answer(report),
        facts=[f"{counts}, reward '{report.reward}'{threshold}{rows_set_aside(report.source)}"],
        findings=report.findings[1:] if {"findings", ALL} & set(show) else (),
        views={name: partial(draw, view, report) for name, view in _VIEWS.items()}
        | {
            "shares": partial(_overall, report),
            "steps": lambda notes: [_by_step(report, notes)] if _has_steps(report) else [],
            "cost": partial(_cost, report),
        },
        offered=["shares", "cost", "advantages", "findings", *(name for name, rows in optional.items() if rows)],
        tone="problem" if dead == 1 or report.is_in_conflict else "fine" if dead == 0 else "",
    ).screen(show)


def _has_steps(report: DegeneracyReport) -> bool:
    """Whether the course is a table of its own: windows, at most ten, are part of the answer."""
    return len(report.course.step) > 1 and not report.course.is_windows


def _answer(report: DegeneracyReport) -> Blocks:
    notes = Footnotes()
    yield _shares(report, notes)
    yield cell(_prompts(report.prompts, report.reward))
    if len(report.by_group_size) > 1:
        yield Text()
        yield from draw(SIZES, report, notes)
        notes.remark(f"i.i.d.: p is {report.pass_rate_origin}")
    if report.target is not None:
        columns = (
            Column(f"to {100 * report.target.target:g} % dead", "plan"),
            Column("group\nsize", lambda plan: "" if plan.group_size is None else str(plan.group_size), "count"),
            Column("no gradient", "degeneracy", "share", ""),
            Column("rollouts\na group", "rollouts_per_group", "rank"),
            Column("tokens\na group", "tokens_per_group", "count"),
            Column("how", "method"),
        )
        yield from (Text(), draw_table(columns, report.target.plans, notes))
    if report.course.is_windows:
        yield from (Text(), _by_step(report, notes))
    yield from map(cell, notes.lines())


def _prompts(counts: PromptCounts, reward: str) -> str:
    """How many prompts the policy learns from, in a line; by which reward where it is not the reported one."""
    whose = "" if counts.reward == reward else f" by '{plain(counts.reward, limit=28)}'"
    if counts.never is None or counts.always is None:
        return f"Prompts: {counts.live:,} had a group whose rewards differed."
    lost = counts.never + counts.always
    share = f" ({percent(counts.frac_rollouts)} of rollouts)" if lost else ""
    live = f"{counts.live:,} {'is' if counts.live == 1 else 'are'} live"
    return f"Prompts{whose}: {counts.never:,} never pass, {counts.always:,} always pass{share}, {live}."


_SHARES = (
    ("no gradient", attrgetter("frac_reward_zero_std"), True),
    ("  of all sampled", attrgetter("behind_filter.frac_zero_std_sampled"), False),
    ("  all pass", attrgetter("frac_all_pass"), True),
    ("  all fail", attrgetter("frac_all_fail"), True),
    ("  tied between", attrgetter("frac_tied"), True),
    ("side rewards alone", attrgetter("frac_reward_conflict"), False),
    ("pass rate", attrgetter("pass_rate"), True),
)
"""The first questions of a user, their fields, and whether each step has them."""
_IN_BOLD = "no gradient", "equal rewards"
_SELDOM = {"  of all sampled", "  tied between", "side rewards alone"}
"""Rows that are shown only where there are such groups: most rewards are 0 and 1."""


def _shares(report: DegeneracyReport, notes: Footnotes) -> Table:
    series = report.course
    dead = _dead_title(report)
    rows = [
        (dead if name in _IN_BOLD else name, share_of(report), share_of(series) if by_step else ())
        for name, share_of, by_step in _SHARES
    ]
    units = report.frac_reward_zero_std.num_units
    columns = [
        Column("", itemgetter(0)),
        Column(f"share of groups [95 %\ninterval, {counted(units, 'prompt')}]", itemgetter(1), "share", ""),
    ]
    if len(series.step) > 1:
        columns += [
            Column(
                f"steps {series.step[0]} to {series.last_step[-1]},\nfrom 0 to 1",
                lambda row: "" if _last(row[2]) == "" else Sparkline(row[2], width=_WIDTH),
            ),
            Column("last", lambda row: _last(row[2]), "share"),
        ]
    if report.frac_all_pass.undefined:  # every dead group is then tied
        rows = [row for row in rows if row[0] != "  tied between"]
    shown = [row for row in rows if row[1].is_defined and (row[0] not in _SELDOM or row[1].value)]
    undefined: dict[str, list[str]] = {}
    for name, estimate, _ in rows:
        if estimate.undefined and name not in _SELDOM:
            undefined.setdefault(estimate.undefined, []).append(name.strip())
    table = draw_table(columns, shown, notes, is_bold=lambda row: row[0] in _IN_BOLD)
    for reason, names in undefined.items():
        notes.remark(f"Unknown: {', '.join(names)}, because {reason}")
    return table


def _dead_title(report: DegeneracyReport) -> str:
    """What groups of equal rewards are called: by the logged advantages they may have a gradient, or others none."""
    return _IN_BOLD[report.has_other_baseline or report.contradicts_rewards]


def _last(values: Sequence[float | None]) -> float | str:
    return next((value for value in reversed(values) if value is not None), "")


def _overall(report: DegeneracyReport, notes: Footnotes) -> Blocks:
    split, sampled = report.gap_decomposition, report.behind_filter.frac_zero_std_sampled
    predictions: list[tuple[str, Estimate, Style]] = []
    for row in report.predictions[1:]:
        origin = row.pass_rate_origin.split(" over ")[0].replace("the mean of", "p of")
        origin = origin.replace("the given base pass rate,", "p =")
        predictions.append((f"  with {origin}", row.iid_prediction, "share"))
    rows: list[tuple[str, Estimate, Style]] = [
        (_dead_title(report), report.frac_reward_zero_std, "share"),
        ("  of all sampled", sampled, "share"),
        ("  all fail", report.frac_all_fail, "share"),
        ("  all pass", report.frac_all_pass, "share"),
        ("  tied, neither pass nor fail", report.frac_tied, "share"),
        ("pass rate p", report.pass_rate, "share"),
        ("i.i.d. prediction", report.iid_prediction, "share"),
        *predictions,
        ("Jensen gap", report.jensen_gap, "gap"),
        ("  over the prediction", report.relative_gap, "rank"),
        ("  between prompts", split.between_prompts, "gap"),
        ("  over time", split.over_time, "gap"),
    ]
    columns = (
        Column("", itemgetter(0)),
        Column("share [95 % interval]", itemgetter(1), itemgetter(2), ""),
        Column("units", lambda row: str(row[1].num_units), "count"),
    )
    yield cell(f"p of the i.i.d. prediction: {report.pass_rate_origin}")
    shown = [row for row in rows if row[1].is_defined or row[1] is not sampled]
    yield draw_table(columns, shown, notes, is_bold=lambda row: row[0] in _IN_BOLD)


def _cost(report: DegeneracyReport, notes: Footnotes) -> Blocks:
    cost = report.starvation
    rows: list[tuple[str, Estimate, Style]] = [
        ("rollouts without a gradient", cost.frac_rollouts, "share"),
        ("completion tokens without a gradient", cost.frac_tokens, "share"),
        ("generation time without a gradient", cost.frac_generation_time, "share"),
        ("rollouts a step", cost.batch_size, "rank"),
        ("  that count", cost.effective_batch_size, "rank"),
        ("scale of a loss averaged over all rollouts", cost.dilution, "share"),
        ("groups to sample for each live one", cost.resampling_factor, "rank"),
    ]
    columns = (
        Column("what degenerate groups cost", itemgetter(0)),
        Column("[95 % interval]", itemgetter(1), itemgetter(2), ""),
    )
    # few logs time their rollouts: nearly every table would have a dash
    timed = [row for row in rows if row[1].is_defined or row[1] is not cost.frac_generation_time]
    yield draw_table(columns, timed, notes)


_VIEWS: Mapping[str, View] = {
    "advantages": ADVANTAGES,
    "rewards": REWARDS,
    "prompts": prompts_view(MAX_ROWS),
    "environments": ENVIRONMENTS,
    "policies": POLICIES,
}
"""Name of ``--show`` -> its tables, each drawn where the result has such records."""


_BY_STEP: tuple[tuple[str, str, Style], ...] = (
    ("no\ngradient", "frac_reward_zero_std", "share"),
    ("fail", "frac_all_fail", "share"),
    ("pass", "frac_all_pass", "share"),
    ("tied", "frac_tied", "share"),
    ("pass\nrate", "pass_rate", "share"),
    ("i.i.d.", "iid_prediction", "share"),
    ("gap", "jensen_gap", "gap"),
)
"""Title, field and style of a column over steps; one that is nowhere defined is left out."""
_UNCOVERED = Estimate.undefined_because("the trainer logged no share that covers this step's groups")
_OF_ONE_STEP = {"iid_prediction", "jensen_gap"}
"""No means over groups: several steps have them at their own pass rate alone. Of the others the mean by the number of
groups is that of all the groups."""


def _by_step(report: DegeneracyReport, notes: Footnotes) -> Table:
    """Every step or window, of many steps neighbors together; the last column only where the trainer logged its own."""
    steps = report.by_step
    is_short = len(steps) <= MAX_STEPS
    shown = [
        (title, name, style)
        for title, name, style in _BY_STEP
        if (is_short or name not in _OF_ONE_STEP) and any(getattr(row, name).is_defined for row in steps)
    ]
    columns = [
        Column("step", lambda rows: _span(rows[0].step, rows[-1].last_step), "count"),
        Column("groups", lambda rows: str(sum(row.num_groups for row in rows)), "count"),
        *(Column(title, partial(_mean, name), style) for title, name, style in shown),
    ]
    if is_short and any(row.logged is not None for row in steps):
        columns.append(Column("logged", lambda rows: _UNCOVERED if rows[0].logged is None else rows[0].logged, "share"))
    joined = _joined(len(steps), "their groups. --by window has intervals", notes)
    table = draw_table(columns, [steps[part] for part in joined], notes)
    if any(name == "iid_prediction" for _, name, _ in shown):
        notes.remark(f"i.i.d. by step: p is {report.course_pass_rate_origin}")
    return table


def _joined(number: int, means: str, notes: Footnotes) -> list[slice]:
    """The rows of so many steps, a row each or, of many, neighbors together, with a remark on their means."""
    rows = number if number <= MAX_STEPS else _JOINED
    if rows < number:
        notes.remark(
            f"Each row joins about {number / rows:.0f} steps, a mean over {means}; the JSON and the CSV have each step."
        )
    return [slice(*edge) for edge in pairwise(number * edge // rows for edge in range(rows + 1))]


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _mean(name: str, rows: Sequence[StepDegeneracy]) -> Estimate | float | None:
    if len(rows) == 1:
        estimate: Estimate = getattr(rows[0], name)
        return estimate
    defined = [(value, row.num_groups) for row in rows if (value := getattr(row, name).value) is not None]
    return sum(value * number for value, number in defined) / sum(number for _, number in defined) if defined else None


def _metrics_by_step(report: DegeneracyReport, metrics: Sequence[MetricCourse]) -> Blocks:
    """Each number that was logged, with its course."""
    if not report.metrics:
        return

    def drawn(metric: MetricCourse) -> Sparkline:
        extremes = (metric.at(metric.smallest_step), metric.at(metric.largest_step))
        ends = (0.0, 1.0) if metric.style == "share" else extremes
        return Sparkline(metric.values, *ends, width=_WIDTH_AS_LOGGED)

    first = min(metric.steps[0] for metric in report.metrics)
    last = max(metric.steps[-1] for metric in report.metrics)
    yield cell("As the trainer logged it; a mean is over logged steps, without an interval.")
    columns = (
        Column("", "title"),
        Column("mean", lambda row: None if row.mean.value is None else _number(row.mean.value, row), "count"),
        Column(f"steps {first} to {last}", drawn),
        Column("first", lambda row: _number(row.values[0], row), "count"),
        Column("last", lambda row: _number(row.values[-1], row), "count"),
        Column("largest", lambda row: _number(row.at(row.largest_step), row), "count"),
        Column("at step", digits("largest_step"), "count"),
    )
    yield draw_table(columns, metrics, Footnotes(), is_bold=lambda row: row.name == "frac_reward_zero_std")


def _number(value: float, metric: MetricCourse) -> str:
    """In three digits where it is of no known size: seven columns have to fit a screen."""
    if metric.style == "norm" and math.isfinite(value):
        return f"{value:z.3g}"
    return format_number(value, metric.style)


def _steps_as_logged(report: DegeneracyReport, notes: Footnotes) -> Iterator[Table]:
    """Every step or window, of many steps neighbors together."""
    series = report.course
    if len(series.step) < 2:
        return
    dead = series.frac_reward_zero_std
    columns = (
        Column("step", lambda part: _span(series.step[part.start], series.last_step[part.stop - 1]), "count"),
        Column("no\ngradient", lambda part: mean_of_defined(dead[part.start : part.stop]), "share"),
    )
    yield draw_table(columns, _joined(len(series.step), "them", notes), notes)


_FOLLOWED = ((7, "step"), (7, "groups"), (20, "degenerate [95 %]"), (7, "fail"), (7, "pass"), (7, "tied"), (7, "p"))
"""Widths and titles of the lines that are printed while a run is written."""


def step_head() -> str:
    """The titles of the lines of steps, as one line."""
    return _line([title for _, title in _FOLLOWED])


def step_line(row: StepDegeneracy) -> str:
    """One step as one line, for output while the work goes on; undefined numbers are dashes."""
    shares = (row.frac_reward_zero_std, row.frac_all_fail, row.frac_all_pass, row.frac_tied, row.pass_rate)
    cells = (
        UNDEFINED if share.value is None else format_estimate(share, Footnotes(), "share", interval=index == 0)
        for index, share in enumerate(shares)
    )
    return _line([str(row.step), str(row.num_groups), *cells])


def _line(cells: Sequence[str]) -> str:
    return " ".join(cell.rjust(width) for cell, (width, _) in zip(cells, _FOLLOWED, strict=True))

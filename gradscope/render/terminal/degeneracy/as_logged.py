"""Metrics alone: the verdict, and each number that was logged with its course."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from gradscope.render.terminal.answer import SCREEN_ROWS, Blocks, answer
from gradscope.render.terminal.layout import add_row, losses, new_table
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import UNDEFINED, format_number
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.logged import MetricCourse

_WIDTH = 16


def as_logged_table(report: DegeneracyReport, show: Sequence[str]) -> Group:
    """What rich prints of a report whose source holds metrics and no rollouts."""
    dead = report.frac_reward_zero_std.value
    return answer(
        "degeneracy",
        report.findings,
        _answer(report, report.metrics[:SCREEN_ROWS]),
        facts=losses([report.source]),
        findings=report.findings[1:],
        views={
            "steps": lambda _: [_by_step(report)] if len(report.by_step) > 1 else [],
            "metrics": lambda _: _answer(report, report.metrics) if len(report.metrics) > SCREEN_ROWS else (),
        },
        show=show,
        tone="problem" if dead == 1 else "",
    )


def _answer(report: DegeneracyReport, courses: Sequence[MetricCourse]) -> Blocks:
    if report.metrics:
        steps = sorted({step for one in report.metrics for step in one.steps})
        yield cell("As the trainer logged it; a mean is over logged steps, without an interval.")
        table = new_table(
            [
                ("", "left"),
                ("mean", "right"),
                (f"steps {steps[0]} to {steps[-1]}"[:_WIDTH], "left"),
                ("first", "right"),
                ("last", "right"),
                ("largest", "right"),
                ("at step", "right"),
            ]
        )
        for course in courses:
            _add(table, course)
        yield table


def _add(table: Table, course: MetricCourse) -> None:
    low, high = (
        (0.0, 1.0) if course.style == "share" else (course.at(course.smallest_step), course.at(course.largest_step))
    )
    mean = course.mean.value
    add_row(
        table,
        course.title,
        UNDEFINED if mean is None else _number(mean, course),
        sparkline(course.values, low=low, high=high, width=_WIDTH),
        _number(course.values[0], course),
        _number(course.values[-1], course),
        _number(course.at(course.largest_step), course),
        str(course.largest_step),
        style="bold" if course.name == "frac_reward_zero_std" else None,
    )


def _number(value: float, course: MetricCourse) -> str:
    """In three digits where it is of no known size: seven columns have to fit a screen."""
    if course.style == "norm" and math.isfinite(value):
        return f"{value:.3g}"
    return format_number(value, course.style)


def _by_step(report: DegeneracyReport) -> Table:
    table = new_table([("step", "right"), ("no\ngradient", "right")])
    for row in report.by_step:
        value = row.frac_reward_zero_std.value
        span = str(row.step) if row.step == row.last_step else f"{row.step}-{row.last_step}"
        add_row(table, span, UNDEFINED if value is None else format_number(value, "share"))
    return table

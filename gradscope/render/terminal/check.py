"""A check as a list: each requirement with its outcome, number, limit, meaning and next step."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gradscope.render.terminal.layout import heading, source_line
from gradscope.render.terminal.replay import STYLES
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import UNDEFINED, format_number
from gradscope.render.words.verdict_condition import condition
from gradscope.results.check import CheckReport, Verdict
from gradscope.say import with_interval


def check_table(report: CheckReport) -> Group:
    """The outcome of all in the heading, then a paragraph a requirement."""
    head = heading(f"Check: {report.outcome}", source_line(report.source))
    return Group(head, *(_paragraph(verdict) for verdict in report.verdicts))


def _paragraph(verdict: Verdict) -> Group:
    head = Text("\n")
    head.append(verdict.outcome.upper(), style=STYLES.get(verdict.outcome, "yellow"))
    allowed = " (allowed)" if verdict.allowed else ""
    head.append(f"{allowed}  {plain(condition(verdict))}, is {_value(verdict)}")
    sentences = [sentence for sentence in (verdict.meaning, verdict.next_step) if sentence]
    return Group(head, *(Padding(cell(sentence), (0, 0, 0, 2)) for sentence in sentences))


def _value(verdict: Verdict) -> str:
    """The number; why there is none is said in the meaning below."""
    estimate = verdict.estimate
    if estimate.value is None:
        return UNDEFINED
    return with_interval(estimate, lambda number: format_number(number, "norm"))

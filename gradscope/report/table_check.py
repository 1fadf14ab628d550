"""A check as a list: each requirement with its outcome, number, limit, meaning and next step."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gradscope.report.escape import plain
from gradscope.report.layout import heading, source_line
from gradscope.report.numbers import UNDEFINED, format_number
from gradscope.report.table_replay import STYLES
from gradscope.results.check import CheckReport, Verdict


def check_table(report: CheckReport) -> Group:
    """The report for a terminal.

    Args:
        report: The verdicts.

    Returns:
        One paragraph per requirement, the outcome of all in the heading.
    """
    head = heading(f"Check: {report.outcome}", source_line(report.source))
    return Group(head, *(_paragraph(verdict) for verdict in report.verdicts))


def _paragraph(verdict: Verdict) -> Text:
    text = Text("\n")
    text.append(verdict.outcome.upper(), style=STYLES.get(verdict.outcome, "yellow"))
    text.append(f"  {plain(verdict.metric)} {verdict.op} {verdict.limit:g}, is {_value(verdict)}")
    for sentence in (verdict.meaning, verdict.next_step):
        if sentence:
            text.append(f"\n  {plain(sentence)}")
    return text


def _value(verdict: Verdict) -> str:
    estimate = verdict.estimate
    if estimate.value is None:
        return f"{UNDEFINED} ({plain(estimate.undefined or '')})"
    text = format_number(estimate.value, "norm")
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{format_number(estimate.low, 'norm')}, {format_number(estimate.high, 'norm')}]"

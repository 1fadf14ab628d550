"""A report in the terminal: each question with its one sentence, in the page's own words."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gradscope.report.escape import cell, plain
from gradscope.report.layout import heading, source_line
from gradscope.results.report import ReportSection, RunReport


def report_table(report: RunReport) -> Group:
    """The report for a terminal.

    Args:
        report: Everything that was found.

    Returns:
        One paragraph a question; the page holds the rest.
    """
    head = heading(f"Report: {plain(report.name)}", source_line(report.source))
    return Group(head, *(_paragraph(section) for section in report.sections))


def _paragraph(section: ReportSection) -> Group:
    style = "" if section.missing is None else "dim"
    return Group(
        Text(f"\n{plain(section.question)}", style="bold"), Padding(cell(section.headline, style=style), (0, 0, 0, 2))
    )

"""A report in the terminal: each question with its one sentence, in the page's own words, and its course in a line."""

from __future__ import annotations

import math

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gradscope.render.terminal.layout import heading, source_line
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.escape import cell, plain
from gradscope.results.report import Chart, ReportSection, RunReport

_WIDTH = 24
_LONGEST = 78


def report_table(report: RunReport) -> Group:
    """A paragraph a question; the page holds the rest."""
    head = heading(f"Report: {plain(report.name)}", source_line(report.source))
    return Group(head, *(_paragraph(section) for section in report.sections))


def _paragraph(section: ReportSection) -> Group:
    style = "" if section.missing is None else "dim"
    lines = [cell(section.headline, style=style), *(_curve(chart) for chart in section.charts[:1] if _is_course(chart))]
    return Group(Text(f"\n{plain(section.question)}", style="bold"), *(Padding(line, (0, 0, 0, 2)) for line in lines))


def _is_course(chart: Chart) -> bool:
    """Whether the chart goes over steps; a single place or a list of names is no curve."""
    return chart.kind != "bars" and len(chart.places) > 1


def _curve(chart: Chart) -> Text:
    """The page's first figure: of a stack its height, else its first line; then the ends of the scale, and the name."""
    first = chart.series[0]
    values = first.values if chart.kind == "lines" else tuple(map(_height, zip(*_columns(chart), strict=True)))
    numbers = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
    low, high = chart.y_range or (min(numbers), max(numbers))
    name = chart.title if chart.kind == "stack" or len(chart.series) == 1 else f"{chart.title}: {first.name}"
    drawn = f"{sparkline(values, low=low, high=high, width=_WIDTH)} {low:.3g} to {high:.3g}, "
    text = Text(drawn if len(drawn) + len(name) <= _LONGEST else f"{drawn}\n")
    return text.append_text(cell(name, limit=_LONGEST))


def _columns(chart: Chart) -> list[tuple[float | None, ...]]:
    return [series.values for series in chart.series]


def _height(parts: tuple[float | None, ...]) -> float | None:
    defined = [part for part in parts if part is not None]
    return sum(defined) if defined else None

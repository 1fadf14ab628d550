"""A report in the terminal: the first answers, each question with its sentence and course; or a line a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import Blocks, answer
from gradscope.render.terminal.layout import draw_table, losses, sparkline
from gradscope.render.views.view import MOST_ROWS, Column, Course, evenly
from gradscope.render.words import STYLES, Footnotes, cell, key_number_words, plain
from gradscope.results.report import Chart, KeyNumber, ReportSection, RunIndex, RunReport, RunSummary, Severity

_WIDTH, _INDEX_WIDTH = 24, 12
_LONGEST, _TITLE = 78, 38
_KINDS: Mapping[Severity, str] = {
    "problem": "with a problem",
    "look": "to look at",
    "fine": "fine",
    "unknown": "undecided",
}


def report_table(report: RunReport, show: Sequence[str] = ()) -> Group:
    """How many questions are answered and how, the numbers on top of the page, and the answers that ask for most."""
    answered = [section for section in report.by_severity if section.missing is None]
    counts = Counter(section.severity for section in answered)
    kinds = ", ".join(f"{counts[kind]} {word}" for kind, word in _KINDS.items() if counts[kind])
    said = f"Of {len(report.sections)} questions this log answers {len(answered)}{f' ({kinds})' if kinds else ''}."
    verdict = f"{answered[0].headline} {said}" if answered else f"{said} The page says what to log."
    return answer(
        "report",
        (verdict, *map(_item, answered[1:])),
        _answer(report),
        facts=losses([report.source]),
        views={"sections": lambda notes: map(_paragraph, report.by_severity)},
        show=show,
        tone=answered[0].severity if answered else "unknown",
    )


def _answer(report: RunReport) -> Blocks:
    """The numbers that the run is known by, and what the log does not tell."""
    if any(number.value.is_defined for number in report.strip):
        yield _key_numbers([number for number in report.strip if number.value.is_defined])
    names = [section.name for section in report.sections if section.missing is not None]
    if names:
        yield cell(f"Not in this log: {', '.join(names)}; the page says what to log.")


def _key_numbers(numbers: Sequence[KeyNumber]) -> Table:
    """A line a number with what it is held against, where there is room for that; its course is on the page."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    titles = [plain(number.title, limit=_TITLE) for number in numbers]
    room = _LONGEST - max(map(len, titles))
    for title, number in zip(titles, numbers, strict=True):
        parts = [" ".join(filter(None, words)) for words in key_number_words(number)]
        words = " → ".join(parts)
        note = number.note.partition("; course")[0]
        with_note = f"{words}, {note}"
        line = with_note if note and len(with_note) <= room else words
        lines = [line] if len(line) <= room else [*(f"{part} →" for part in parts[:-1]), parts[-1]]
        grid.add_row(Text(title, no_wrap=True), Text("\n").join(map(cell, lines)))
    return grid


def _item(section: ReportSection) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=7)
    grid.add_row(_badge(section), cell(section.headline))
    return grid


def _badge(section: ReportSection) -> Text:
    return Text(section.severity, style=STYLES[section.severity])


def report_index_table(index: RunIndex, show: Sequence[str] = ()) -> Group:
    """A line a run, its rewards as a sparkline."""
    return answer(
        "report",
        index.findings,
        _runs(index, evenly(index.runs)),
        facts=losses([index.source]),
        views={"runs": lambda notes: _runs(index, index.runs) if len(index.runs) > MOST_ROWS else ()},
        show=show,
    )


def _runs(index: RunIndex, runs: Sequence[RunSummary]) -> Blocks:
    notes = Footnotes()
    values = [value for run in index.runs for value in run.reward_by_step if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    title = f"reward, {low:.3g} to {high:.3g}"
    width = max(_INDEX_WIDTH, len(title))
    columns = (
        Column("run", "name", limit=26),
        Column(title, lambda run: Course(run.reward_by_step, low, high, width)),
        Column("mean", "reward", "norm"),
        Column("groups without gradient", "frac_reward_zero_std", "share", ""),
    )
    yield draw_table(columns, runs, notes)
    if len(runs) < len(index.runs):
        yield cell(f"{len(runs)} of {len(index.runs)} runs; --show runs has all.")
    lines = (*notes.lines(), *(f"not read: {name}: {reason}" for name, reason in index.left_out))
    yield from map(cell, lines)


def _paragraph(section: ReportSection) -> Group:
    lines = [cell(section.headline), *(_curve(chart) for chart in section.charts[:1] if _is_course(chart))]
    head = Text.assemble(_badge(section), "  ", (plain(section.question), "bold"))
    return Group(head, *(Padding(line, (0, 0, 0, 2)) for line in lines))


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

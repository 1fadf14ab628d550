"""A report in the terminal: the first answers, each question with its sentence and course; or a line a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradscope.render.terminal.answer import Answer, Blocks
from gradscope.render.terminal.layout import draw_table, losses, sparkline
from gradscope.render.views.view import MAX_ROWS, Column, Sparkline
from gradscope.render.words import STYLES, Footnotes, cell, key_number_words, plain
from gradscope.results.report import KeyNumber, ReportSection, RunIndex, RunReport, RunSummary, Severity
from gradscope.say import evenly

_WIDTH, _INDEX_WIDTH = 24, 12
_LONGEST, _TITLE = 78, 38
_NUMBERS = ("reward", "coverage")  # sections that have numbers where they are undecided; others say why they have none
_KINDS: Mapping[Severity, str] = {
    "problem": "with a problem",
    "look": "to look at",
    "fine": "fine",
    "unknown": "undecided",
}


def report_table(report: RunReport, show: Sequence[str] = ()) -> Group:
    """How many questions are answered and how, the numbers on top of the page, and the answers that ask for most."""
    answered = [section for section in report.by_severity if section.missing is None]
    of_kind = {kind: [section.name for section in answered if section.severity == kind] for kind in _KINDS}
    kinds = "; ".join(
        # those that ask for something by name: a screen has no room for all of them
        f"{len(names)} {_KINDS[kind]}" + (f": {', '.join(names)}" if kind in ("problem", "look") else "")
        for kind, names in of_kind.items()
        if names
    )
    summary = f"Of {len(report.sections)} questions this log answers {len(answered)}{f' ({kinds})' if kinds else ''}."
    asks = [section.next_step for section in answered[:1] if section.severity in ("problem", "look")]
    decides_nothing = report.source.kind == "rollouts" and all(section.severity == "unknown" for section in answered)
    no_groups = next((section.missing for section in report.sections if section.name == "signal"), None)
    remaining = answered[1:]
    if not answered:
        verdict = f"{summary} The page says what to log."
    elif decides_nothing and no_groups:  # why rollouts are no groups says most
        verdict, remaining = f"{summary} {no_groups}", answered
    else:
        verdict = " ".join(filter(None, (answered[0].headline, *asks, summary)))
    in_words = [
        section
        for section in remaining
        if section.severity in ("problem", "look")
        or (section.severity == "unknown" and (decides_nothing or section.name in _NUMBERS))
    ]
    fine, unknown = (
        [section.name for section in remaining if section.severity == severity and section not in in_words]
        for severity in ("fine", "unknown")
    )
    missing = [section.name for section in report.sections if section.missing is not None]
    defined = [number for number in report.strip if number.value.is_defined]
    return Answer(
        command="report",
        headline=(
            verdict,
            *(_item(section.severity, section.headline) for section in in_words),
            *([_item("fine", ", ".join(fine))] if fine else []),
            *([_item("unknown", ", ".join(unknown))] if unknown else []),
            *([_item("unknown", f"{', '.join(missing)}: the page says what to log", "absent")] if missing else []),
        ),
        table=[_key_numbers(defined)] if defined else [],
        facts=losses([report.source]),
        views={"sections": lambda notes: map(_paragraph, report.by_severity)},
        tone=answered[0].severity if answered else "unknown",
    ).screen(show)


def _key_numbers(numbers: Sequence[KeyNumber]) -> Table:
    """A line a number with its comparison, where there is room for that; its course is on the page."""
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


def _item(severity: Severity, words: str, badge: str = "") -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=7)
    grid.add_row(Text(badge or severity, style=STYLES[severity]), cell(words))
    return grid


def report_index_table(index: RunIndex, show: Sequence[str] = ()) -> Group:
    """A line a run, its rewards as a sparkline."""
    return Answer(
        command="report",
        headline=index.findings,
        table=_runs(index, evenly(index.runs, MAX_ROWS)),
        facts=losses([index.source]),
        views={"runs": lambda notes: _runs(index, index.runs) if len(index.runs) > MAX_ROWS else ()},
    ).screen(show)


def _runs(index: RunIndex, runs: Sequence[RunSummary]) -> Blocks:
    notes = Footnotes()
    values = [value for run in index.runs for value in run.reward_by_step if value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    title = f"reward, {low:.3g} to {high:.3g}"
    width = max(_INDEX_WIDTH, len(title))
    columns = (
        Column("run", "name", limit=26),
        Column(title, lambda run: Sparkline(run.reward_by_step, low, high, width)),
        Column("mean,\nall steps", "reward", "norm"),
        Column("groups without\ngradient, all steps", "frac_reward_zero_std", "share", ""),
    )
    yield draw_table(columns, runs, notes)
    if len(runs) < len(index.runs):
        yield cell(f"{len(runs)} of {len(index.runs)} runs; --show runs has all.")
    lines = (*notes.lines(), *(f"not read: {name}: {reason}" for name, reason in index.left_out))
    yield from map(cell, lines)


def _paragraph(section: ReportSection) -> Group:
    """The question and its sentence, and the page's first figure: of a stack its height, else its first line."""
    lines = [cell(section.headline)]
    for chart in [chart for chart in section.charts[:1] if chart.kind != "bars" and len(chart.places) > 1]:
        first = chart.series[0]
        values = first.values
        if chart.kind == "stack":
            parts = zip(*(series.values for series in chart.series), strict=True)
            defined = ([part for part in column if part is not None] for column in parts)
            values = [sum(column) if column else None for column in defined]
        numbers = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
        low, high = chart.y_range or (min(numbers), max(numbers))
        name = chart.title if chart.kind == "stack" or len(chart.series) == 1 else f"{chart.title}: {first.name}"
        drawn = f"{sparkline(values, low=low, high=high, width=_WIDTH)} {low:.3g} to {high:.3g}, "
        text = Text(drawn if len(drawn) + len(name) <= _LONGEST else f"{drawn}\n")
        lines.append(text.append_text(cell(name, limit=_LONGEST)))
    head = Text.assemble((section.severity, STYLES[section.severity]), "  ", (plain(section.question), "bold"))
    return Group(head, *(Padding(line, (0, 0, 0, 2)) for line in lines))

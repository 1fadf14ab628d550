"""How the terminal draws the declaration of a view, and the lines around every table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, Literal

from msgspec.structs import replace
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradscope.estimate import Estimate
from gradscope.render import words
from gradscope.render.views import view
from gradscope.results.source import Source

WIDTH = 80  # columns that every table fits; further columns of a terminal go to intervals, courses and texts
UNBOUND = 10_000
_LEAST_BARS, _SYLLABLE = 8, 4  # characters of a course and of a broken word; fewer show nothing
_BARS = "▁▂▃▄▅▆▇█"
_MISSING, _NOT_FINITE = "·", "!"


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = 40) -> str:
    """Values, or their means in ``width`` equal runs, as bars of eight heights: a dot for none, ! for one not finite.

    >>> sparkline([0.0, 0.5, None, 1.0, float("nan")], low=0.0, high=1.0)
    '▁▅·█!'
    """
    if len(values) > width:
        edges = [len(values) * edge // width for edge in range(width + 1)]
        runs = [[v for v in values[start:stop] if v is not None] for start, stop in pairwise(edges)]
        values = [sum(run) / len(run) if run else None for run in runs]
    return "".join(_bar(value, low, high) for value in values)


def _bar(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _MISSING
    if not math.isfinite(value):
        return _NOT_FINITE
    share = (value - low) / (high - low) if high > low else 0.0
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]


class _Bars(view.Sparkline, frozen=True):
    """A course that is drawn as wide as there is room, up to its width."""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = min(self.width, len(self.values))
        return Measurement(min(_LEAST_BARS, widest), widest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.values, low=self.low, high=self.high, width=min(self.width, options.max_width)))


class _Fitted(Table):
    """A table that gives way on a narrow terminal without cutting a number.

    Sparklines become shorter, then texts and intervals break between words, the widest first. Where that is not enough,
    courses are left out, then words without digits break, and at last any.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, unbound = copy(self), options.update(width=UNBOUND)
        is_course = [any(isinstance(part, _Bars) for part in column.cells) for column in self.columns]
        for has_courses, breaks in ((True, False), (False, False), (False, True)):
            shown.columns = [
                copy(column) for column, drawn in zip(self.columns, is_course, strict=True) if has_courses or not drawn
            ]
            for index, column in enumerate(shown.columns):
                column._index = index  # by which rich pads
            excess = Measurement.get(console, unbound, shown).maximum - options.max_width
            cells = [[column.header, *column.cells] for column in shown.columns]
            widths = [max(Measurement.get(console, unbound, part).maximum for part in parts) for parts in cells]
            least_widths = [max(_least_width(console, unbound, part, breaks) for part in parts) for parts in cells]
            if excess <= sum(widths) - sum(least_widths):
                break
        for column in shown.columns:
            column.no_wrap, column.overflow = excess <= 0, "fold"
        for _ in range(excess if excess <= sum(widths) - sum(least_widths) else 0):
            spare = [index for index in range(len(widths)) if widths[index] > least_widths[index]]
            widest = max(spare, key=lambda index: (has_courses and is_course[index], widths[index]))
            widths[widest] -= 1
            shown.columns[widest].width = widths[widest]
        return Table.__rich_console__(shown, console, options)


def _least_width(console: Console, options: ConsoleOptions, part: RenderableType, breaks: bool) -> int:
    """That of a cell's longest word; where words break, of its longest with a digit, and of syllables of the others."""
    if isinstance(part, Text) and breaks:
        part = Text(" ".join(word if any(map(str.isdigit, word)) else word[:_SYLLABLE] for word in part.plain.split()))
    return Measurement.get(console, options, part).minimum


Column = tuple[str, Literal["left", "right"]]


def losses(sources: Iterable[Source]) -> list[str]:
    """A line for each input of which something is missing, with its path and format; stderr says what was read."""
    return [
        f"{source.path} ({source.recognized}){missing}" for source in sources if (missing := rows_set_aside(source))
    ]


def rows_set_aside(source: Source) -> str:
    """The note on a file in a heading where parts of it are missing; of rows the most frequent reason."""
    ended = f"; the evaluation {source.unfinished}" if source.unfinished else ""
    parts = len(source.quarantined.lost)
    lost = f"; {parts} {'parts' if parts > 1 else 'part'} of it could not be read" if parts else ""
    if not source.quarantined.num_rows:
        return f"{lost}{ended}"
    return f"; {source.quarantined.counted} set aside: {source.quarantined.reasons[0].reason}{lost}{ended}"


def draw(views: view.View | tuple[view.View, ...], result: object, notes: words.Footnotes) -> Iterator[Table]:
    """The tables of a result that it has records for; reasons and remarks go to the notes."""
    for table_view in views if isinstance(views, tuple) else (views,):
        if records := view.pick(table_view.records, result):
            shown = table_view.rows(records)
            yield draw_table(table_view.columns_of(records, shown.facts), shown.rows, notes, table_view.is_bold)
            for remark in (*table_view.remarks, *shown.remarks):
                notes.remark(remark)


def draw_table(
    columns: Sequence[view.Column],
    records: Iterable[Any],
    notes: words.Footnotes,
    is_bold: Callable[[Any], bool] = lambda record: False,
) -> Table:
    """Records under columns, with all that the terminal has room for; reasons go to the notes."""
    if not notes.is_shown:  # there may be millions of records
        return Table()
    records, terminal = list(records), Console(file=sys.stdout)
    room = terminal.width - WIDTH
    bare = [
        column.interval_note is None
        and any(isinstance(value, Estimate) and value.interval for value in map(column.value, records))
        for column in columns
    ]
    wide = [
        replace(column, interval_note="") if is_bare else column for column, is_bare in zip(columns, bare, strict=True)
    ]
    for chosen, extra in ((wide, room), (wide, room // 2), (wide, 0), (columns, room // 2)) if room > 0 else ():
        table = _table(chosen, records, notes, is_bold, extra)
        if terminal.measure(table, options=terminal.options.update(width=UNBOUND)).maximum <= terminal.width:
            return table
    if any(bare):
        notes.remark(words.IN_THE_FILES)
    return _table(columns, records, notes, is_bold, 0)


def _table(
    columns: Sequence[view.Column],
    records: Iterable[Any],
    notes: words.Footnotes,
    is_bold: Callable[[Any], bool],
    extra: int,
) -> Table:
    table = new_table([(column.title, "left" if column.is_left else "right") for column in columns])
    for record in records:
        cells = [_drawn(column, record, notes, extra) for column in columns]
        add_row(table, *cells, style="bold" if is_bold(record) else None)
    return table


def _drawn(column: view.Column, record: Any, notes: words.Footnotes, extra: int) -> str | Text | _Bars:
    """A cell; courses and texts may have so many characters more than they ask for."""
    value, style = column.value(record), column.style_of(record)
    limit = None if column.limit is None else column.limit + extra
    if value is None:
        return words.UNDEFINED
    if isinstance(value, view.Word):
        mark = notes.number(value.note) if value.note else ""
        limit = len(value.text) if limit is None else limit - len(mark)
        text = value.text if len(value.text) <= limit else f"{value.text[: limit - 1]}…"
        return Text(f"{text}{mark}", style=words.STYLES[value.tone])
    if isinstance(value, view.Sparkline):
        return _Bars(value.values, value.low, value.high, value.width + extra)
    if isinstance(value, str) or style == "text":
        return words.cell(str(value), limit=limit)
    if isinstance(value, Estimate):
        interval_note = column.interval_note(record) if callable(column.interval_note) else column.interval_note or ""
        return words.format_estimate(
            value, notes, style, interval=column.interval_note is not None, interval_note=interval_note
        )
    return words.format_number(value, style)


def new_table(columns: Sequence[Column]) -> Table:
    """An empty table with a rule under its head, whose titles may have two lines, and nothing else."""
    table = _Fitted(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    height = max(title.count("\n") for title, _ in columns)
    for title, justify in columns:
        on_the_rule = "\n" * (height - title.count("\n")) + title
        table.add_column(Text(on_the_rule), justify=justify, no_wrap=True)
    return table


def add_row(table: Table, *cells: str | Text | _Bars, style: str | None = None) -> None:
    """Adds a row of literal texts, one per column."""
    table.add_row(*(words.cell(item) if isinstance(item, str) else item for item in cells), style=style)


def bullet(finding: str) -> Table:
    """A finding as an item of a list."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text("•"), Text(words.plain(finding)))
    return grid

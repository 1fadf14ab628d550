"""Tables of a page: numbers as the terminal prints them, with the unrounded value for sorting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.estimate import Estimate
from gradscope.render.html.chart import point_of
from gradscope.render.words import Footnotes, format_estimate, format_number
from gradscope.results.report import Cell, ReportColumn, ReportTable

MOST_ROWS = 100  # rows of a table over steps; the JSON document has all of them
_LONG, _PROSE = 30, 60  # a longer text gets a wide cell, so that it is no column of single words


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """One cell as the page shows it."""

    kind: str  # its classes in the style sheet
    text: str  # its text, in lines
    sort: str | None = None  # the unrounded number that it sorts by; None where it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """The content of a table."""

    caption: str  # the text above it
    columns: tuple[ReportColumn, ...]  # its head
    rows: tuple[tuple[PageCell, ...], ...]  # one cell a column
    notes: tuple[str, ...]  # why numbers are undefined, numbered as their cells are


def page_table(table: ReportTable) -> PageTable:
    """The cells of a table in words, and the reasons for undefined numbers."""
    table, notes = windowed_table(table), Footnotes()
    rows = tuple(
        tuple(_cell(cell, column, notes) for cell, column in zip(row, table.columns, strict=True)) for row in table.rows
    )
    return PageTable(caption=table.caption, columns=table.columns, rows=rows, notes=notes.lines())


def _cell(cell: Cell, column: ReportColumn, notes: Footnotes) -> PageCell:
    if cell is None:
        return PageCell(kind="text" if column.style == "text" else "number", text="")
    if isinstance(cell, str) or column.style == "text":
        size = len(str(cell))
        kind = "text long prose" if size > _PROSE else "text long" if size > _LONG else "text"
        return PageCell(kind=kind, text=str(cell))
    if isinstance(cell, Estimate):
        sort = None if cell.value is None else repr(cell.value)
        return PageCell(kind="number", text=format_estimate(cell, notes, column.style), sort=sort)
    return PageCell(kind="number", text=format_number(float(cell), column.style), sort=repr(float(cell)))


def windowed_table(table: ReportTable) -> ReportTable:
    """A table over steps with few enough rows to be read: itself, or one whose rows are windows of as many steps each.

    The first column names them, numbers are means (of estimates, of their values), and words have their counts.
    """
    width = math.ceil(len(table.rows) / MOST_ROWS)
    if not table.by_step or width < 2:
        return table
    parts = [table.rows[start : start + width] for start in range(0, len(table.rows), width)]
    first, *rest = table.columns
    return replace(
        table,
        caption=f"{table.caption}. Each row is {width} steps: means of numbers, counts of words; --json has every step",
        columns=(replace(first, style="text"), *rest),
        rows=tuple((f"{part[0][0]}-{part[-1][0]}", *_together(part)) for part in parts),
    )


def _together(rows: Sequence[tuple[Cell, ...]]) -> Iterator[Cell]:
    for cells in list(zip(*rows, strict=True))[1:]:
        present = [cell for cell in cells if cell is not None]
        words = [cell for cell in present if isinstance(cell, str)]
        if words:
            counted = Counter(words).most_common()
            yield words[0] if len(counted) == 1 else ", ".join(f"{word} {number}" for word, number in counted)
            continue
        numbers = [cell.value if isinstance(cell, Estimate) else cell for cell in present]
        point = point_of([number for number in numbers if isinstance(number, float | int)])
        yield None if point is None else point.value

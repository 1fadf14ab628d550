"""Tables of a page: numbers as the terminal prints them, the unrounded value kept for sorting."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.estimate import Estimate
from gradscope.render.html.windows import windowed_table
from gradscope.render.words.numbers import Footnotes, format_estimate, format_number
from gradscope.results.report import Cell, Column, ReportTable

_LONG = 30
"""A longer text gets a wide cell, so that it does not stand as a column of single words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """One cell as the page shows it."""

    kind: str
    """Its classes in the style sheet."""
    text: str
    """What it says, in lines."""
    sort: str | None = None
    """The unrounded number that it sorts by; None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """What a table shows."""

    caption: str
    """What stands above it."""
    columns: tuple[Column, ...]
    """Its head."""
    rows: tuple[tuple[PageCell, ...], ...]
    """One cell a column."""
    notes: tuple[str, ...]
    """Why numbers are undefined, numbered as their cells are."""


def page_table(table: ReportTable) -> PageTable:
    """The cells of a table in words, and the reasons for what is undefined."""
    table, notes = windowed_table(table), Footnotes()
    rows = tuple(
        tuple(_cell(cell, column, notes) for cell, column in zip(row, table.columns, strict=True)) for row in table.rows
    )
    return PageTable(caption=table.caption, columns=table.columns, rows=rows, notes=notes.lines())


def _cell(cell: Cell, column: Column, notes: Footnotes) -> PageCell:
    if cell is None:
        return PageCell(kind="text" if column.style == "text" else "number", text="")
    if isinstance(cell, str) or column.style == "text":
        return PageCell(kind="text long" if len(str(cell)) > _LONG else "text", text=str(cell))
    if isinstance(cell, Estimate):
        sort = None if cell.value is None else repr(cell.value)
        return PageCell(kind="number", text=format_estimate(cell, notes, column.style), sort=sort)
    return PageCell(kind="number", text=format_number(float(cell), column.style), sort=repr(float(cell)))

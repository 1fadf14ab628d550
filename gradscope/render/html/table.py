"""Tables of a page: numbers as the terminal prints them, the unrounded value kept for sorting."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.render.html.escape import block, text
from gradscope.render.words.numbers import Footnotes, format_estimate, format_number
from gradscope.results.report import Cell, Column, ReportTable

_LONG = 24
"""A longer text gets a wide cell, so that it does not stand as a column of single words."""


def render_table(table: ReportTable, identity: str) -> str:
    """A table with its caption and the reasons for what is undefined.

    The caption stands above the box that scrolls, so that it wraps where the table does not fit.

    Args:
        table: The data.
        identity: An id that no other table of the page has.

    Returns:
        A scrolling box with a ``table`` element, and its footnotes.
    """
    notes = Footnotes()
    head = "".join(f'<th scope="col" class="{_kind(column)}">{text(column.title)}</th>' for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(cell, column, notes) for cell, column in zip(row, table.columns, strict=True))}</tr>"
        for row in table.rows
    )
    reasons = "".join(f"<p>{text(line)}</p>" for line in notes.lines())
    footnotes = f'<div class="notes">{reasons}</div>' if reasons else ""
    return (
        f'<p class="caption" id="{identity}">{text(table.caption)}</p>'
        f'<div class="table" tabindex="0"><table aria-labelledby="{identity}">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{footnotes}"
    )


def _kind(column: Column) -> str:
    return "text" if column.style == "text" else "number"


def _cell(cell: Cell, column: Column, notes: Footnotes) -> str:
    kind = _kind(column)
    if cell is None:
        return f'<td class="{kind}"></td>'
    if isinstance(cell, str) or column.style == "text":
        return f'<td class="text{" long" if len(str(cell)) > _LONG else ""}">{block(str(cell))}</td>'
    if isinstance(cell, Estimate):
        value = "" if cell.value is None else f' data-sort="{cell.value!r}"'
        return f'<td class="{kind}"{value}>{text(format_estimate(cell, notes, column.style))}</td>'
    return f'<td class="{kind}" data-sort="{float(cell)!r}">{text(format_number(float(cell), column.style))}</td>'

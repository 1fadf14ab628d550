from __future__ import annotations

import pytest

from gradscope.estimate import Estimate
from gradscope.render.html.table import PageCell, page_table
from gradscope.results.report import Cell, Column, ColumnStyle, ReportTable


def shown(cell: Cell, style: ColumnStyle = "share") -> PageCell:
    return page_table(ReportTable(caption="", columns=(Column(title="", style=style),), rows=((cell,),))).rows[0][0]


@pytest.mark.parametrize(
    ("cell", "style", "expected"),
    [
        (0.25, "share", PageCell(kind="number", text="0.250", sort="0.25")),
        (1234, "count", PageCell(kind="number", text="1,234", sort="1234.0")),
        (
            Estimate(value=0.125, low=0.1, high=0.4),
            "share",
            PageCell(kind="number", text="0.125 [0.10, 0.40]", sort="0.125"),
        ),
        (None, "share", PageCell(kind="number", text="")),
        (None, "text", PageCell(kind="text", text="")),
        ("two\nlines", "text", PageCell(kind="text", text="two\nlines")),
        ("a" * 31, "text", PageCell(kind="text long", text="a" * 31)),
        ("match", "norm", PageCell(kind="text", text="match")),
    ],
)
def test_a_cell_reads_by_its_column_and_sorts_by_its_number(cell: Cell, style: ColumnStyle, expected: PageCell) -> None:
    assert shown(cell, style) == expected


def test_a_reason_is_noted_once_and_sorts_by_nothing() -> None:
    missing, other = Estimate.undefined_because("no reward"), Estimate.undefined_because("no tokens")
    columns = (Column(title="a", style="share"), Column(title="b", style="share"))
    table = page_table(ReportTable(caption="", columns=columns, rows=((missing, other), (missing, 0.5))))
    assert [[cell.text for cell in row] for row in table.rows] == [["—¹", "—²"], ["—¹", "0.500"]]
    assert table.rows[0][0].sort is None
    assert table.notes == ("¹ no reward", "² no tokens")


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="zip"):
        page_table(ReportTable(caption="", columns=(Column(title="a"),), rows=(("x", "y"),)))

import pytest

from gradscope.estimate import Estimate
from gradscope.render.html.table import MOST_ROWS, PageCell, page_table, windowed_table
from gradscope.results.report import Cell, ColumnStyle, ReportColumn, ReportTable


def shown(cell: Cell, style: ColumnStyle = "share") -> PageCell:
    return page_table(ReportTable(caption="", columns=(ReportColumn(title="", style=style),), rows=((cell,),))).rows[0][
        0
    ]


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
    columns = (ReportColumn(title="a", style="share"), ReportColumn(title="b", style="share"))
    table = page_table(ReportTable(caption="", columns=columns, rows=((missing, other), (missing, 0.5))))
    assert [[cell.text for cell in row] for row in table.rows] == [["—¹", "—²"], ["—¹", "0.500"]]
    assert table.rows[0][0].sort is None
    assert table.notes == ("¹ no reward", "² no tokens")


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="zip"):
        page_table(ReportTable(caption="", columns=(ReportColumn(title="a"),), rows=(("x", "y"),)))


def long_table(length: int) -> ReportTable:
    rows = tuple(
        (step, Estimate.exact(step), None if step % 2 else 0.5, "dead" if step % 4 == 0 else "live", None)
        for step in range(1, length + 1)
    )
    columns = (ReportColumn(title="step", style="count"), *(ReportColumn(title=name, style="norm") for name in "abcd"))
    return ReportTable(caption="Each step", columns=columns, rows=rows, by_step=True)


def test_a_long_table_has_a_row_a_window() -> None:
    long = windowed_table(long_table(1000))
    assert len(long.rows) == MOST_ROWS
    assert long.rows[0] == ("1-10", 5.5, 0.5, "live 8, dead 2", None)
    assert long.rows[-1][0] == "991-1000"
    assert "Each row is 10 steps" in long.caption


def test_short_tables_and_those_of_other_things_are_left_alone() -> None:
    short = long_table(MOST_ROWS)
    assert windowed_table(short) is short
    other = ReportTable(caption="", columns=short.columns, rows=long_table(1000).rows)
    assert windowed_table(other) is other


def test_words_that_are_alike_are_said_once() -> None:
    alike = ReportTable(caption="", columns=long_table(1).columns[:2], rows=((1, "match"),) * 300, by_step=True)
    assert windowed_table(alike).rows[0] == ("1-1", "match")

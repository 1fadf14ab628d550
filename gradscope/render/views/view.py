"""A table declared once: which records of a result, which of their fields, under which titles.

The terminal draws a declaration, and :func:`tabulate` turns its columns into tables of the page and the notebook.
CSV files and data frames have every field of the same records. A declaration knows nothing of colors, widths or HTML:
its values are text, numbers, estimates and the three classes below.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.words import Tone
from gradscope.say import evenly

if TYPE_CHECKING:
    from gradscope.results.report import Cell, Chart, ColumnStyle, ReportTable, SeriesKind

Pick = str | Callable[[Any], Any]  # a field, ``point.step`` for one of a field, or a function of the record

MAX_ROWS = 12  # of a table where not all rows are asked for


class Word(Struct, frozen=True):
    """A text of ours, or one that is escaped already, with a color or a footnote; it may have several lines."""

    text: str
    tone: Tone = ""
    note: str = ""  # its footnote; empty for none


class Sparkline(Struct, frozen=True):
    """Values over steps, drawn as a line of bars."""

    values: Sequence[float | None]
    low: float = 0.0
    high: float = 1.0
    width: int = 12


class Column(Struct, frozen=True):
    """One column of a table.

    Attributes:
        title: Its head; ``{step}`` and the like are replaced by facts of the shown rows.
        source: The attribute of its record that a cell is, or a function of the record.
        style: How numbers read, in all rows or in one; an integer is grouped by thousands, which ``str`` avoids for
            steps.
        interval_note: Why a number has no interval; empty where that is shown elsewhere, None where intervals have no
            room.
        limit: Characters of a text; a longer one is cut.
    """

    title: str
    source: Pick
    style: ColumnStyle | Callable[[Any], ColumnStyle] = "text"
    interval_note: str | Callable[[Any], str] | None = None
    limit: int | None = None

    @property
    def is_left(self) -> bool:
        """Whether it is aligned to the left, as words are, and numbers with intervals, whose lengths differ."""
        return self.style == "text" or self.interval_note is not None

    def value(self, record: Any) -> Any:
        """The cell of a record."""
        return pick(self.source, record)

    def style_of(self, record: Any) -> ColumnStyle:
        """How the number of a record reads."""
        return self.style if isinstance(self.style, str) else self.style(record)


def pick(source: Pick, record: Any) -> Any:
    """The value of a record that a declaration names."""
    return attrgetter(source)(record) if isinstance(source, str) else source(record)


def digits(name: str) -> Callable[[Any], str]:
    """An integer without separators, such as a step or a size."""
    return lambda record: str(pick(name, record))


def entry(source: Pick, key: object) -> Callable[[Any], Any]:
    """One entry of a mapping, such as the cosine with one of several updates; None where it is absent."""
    return lambda record: pick(source, record).get(key)


class Selection(Struct, frozen=True):
    """The rows of a table, of all that there are."""

    rows: Sequence[Any]
    facts: Mapping[str, object] = {}  # values of the names in braces in titles
    remarks: tuple[str, ...] = ()  # sentences on the omitted rows


class View(Struct, frozen=True):
    """A table of some records of a result; nothing where it has none.

    Attributes:
        records: The field that holds them, or a function of the result.
        columns: From left to right; a function of the records where their number depends on these.
        rows: Which of the records are shown; all by default.
        remarks: Sentences below the table.
        is_bold: Whether a row stands out.
    """

    records: Pick
    columns: Sequence[Column] | Callable[[Sequence[Any]], Sequence[Column]]
    rows: Callable[[Sequence[Any]], Selection] = Selection
    remarks: tuple[str, ...] = ()
    is_bold: Callable[[Any], bool] = lambda record: False

    def columns_of(self, records: Sequence[Any], facts: Mapping[str, object]) -> list[Column]:
        """The columns, their titles complete."""
        columns = []
        for column in self.columns(records) if callable(self.columns) else self.columns:
            title = column.title
            # no str.format: names of advantages from a log, which may hold braces, are in titles, too
            for name, fact in facts.items():
                title = title.replace(f"{{{name}}}", str(fact))
            columns.append(replace(column, title=title))
        return columns


def tabulate(
    caption: str, columns: Iterable[Column], records: Iterable[Any], *, by_step: bool = False, folded_as: str = ""
) -> tuple[ReportTable, ...]:
    """The plain data of a table, for a report's document: unrounded numbers, and the style they are printed in.

    None without records.
    """
    columns = tuple(columns)
    heads = [(column.title, column.style_of(None)) for column in columns]
    rows = (tuple(column.value(record) for column in columns) for record in records)
    return table_of_cells(caption, heads, rows, by_step=by_step, folded_as=folded_as)


def table_of_cells(
    caption: str,
    columns: Iterable[tuple[str, ColumnStyle]],
    rows: Iterable[tuple[Cell, ...]],
    *,
    by_step: bool = False,
    folded_as: str = "",
) -> tuple[ReportTable, ...]:
    """The same of rows whose cells are made already, under titles with their styles."""
    from gradscope.results.report import ReportColumn, ReportTable

    heads, cells = tuple(ReportColumn(title=title, style=style) for title, style in columns), tuple(rows)
    table = ReportTable(caption=caption, columns=heads, rows=cells, by_step=by_step, folded_as=folded_as)
    return (table,) if cells else ()


def view_table(view: View, result: object, caption: str) -> tuple[ReportTable, ...]:
    """A declared table as plain data: titles in one line, no colors, no courses; none without such records."""
    records = pick(view.records, result)
    if not records:
        return ()
    shown = view.rows(records)
    columns = view.columns_of(records, shown.facts)
    rows = [[column.value(row) for column in columns] for row in shown.rows]
    drawable = [index for index, cell in enumerate(rows[0]) if not isinstance(cell, Sparkline)] if rows else []
    titles = [columns[index].title.replace("-\n", "").replace("\n", " ") for index in drawable]
    return table_of_cells(
        ". ".join((caption, *shown.remarks)),
        [(title, columns[index].style_of(None)) for title, index in zip(titles, drawable, strict=True)],
        (tuple(cell.text if isinstance(cell := row[index], Word) else cell for index in drawable) for row in rows),
    )


def lines_over(
    steps: Iterable[float],
    title: str,
    series: Mapping[str, Iterable[float | None]],
    *,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    kinds: Mapping[str, SeriesKind] = MappingProxyType({}),
) -> tuple[Chart, ...]:
    """A chart of lines over steps, for page and figures; none over a single step, which is no course."""
    from gradscope.results.report import Chart, Series

    positions = steps if isinstance(steps, array) else tuple(steps)  # arrays of long courses stay as small as they are
    lines = (
        Series(name=name, values=values if isinstance(values, array) else tuple(values), kind=kinds.get(name))
        for name, values in series.items()
    )
    chart = Chart(title=title, kind="lines", places=positions, series=tuple(lines), y_label=y_label, y_range=y_range)
    return (chart,) if len(positions) > 1 else ()


def named_bars(title: str, name: str, bars: Mapping[str, float], *, x_label: str) -> tuple[Chart, ...]:
    """A chart of horizontal bars by their names; none where there are none."""
    from gradscope.results.report import Chart, Series

    series = (Series(name=name, values=tuple(bars.values())),)
    return (Chart(title=title, kind="bars", places=tuple(bars), series=series, x_label=x_label),) if bars else ()


def evenly_spaced(records: Sequence[Any]) -> Selection:
    """Records of many steps, evenly spaced."""
    return Selection(evenly(records, MAX_ROWS))


def last_of(records: Sequence[Any]) -> Selection:
    """Those of the last step, which titles name."""
    step = max(record.step for record in records)
    return Selection([record for record in records if record.step == step], {"step": step})


def first_of(shown: Sequence[Any], records: Sequence[Any], limit: int, label: str, **facts: object) -> Selection:
    """The first of those that would be shown, and how many of all are left to the files."""
    left = len(records) - min(len(shown), limit)
    remarks = (f"{left} more {label} are in the JSON and the CSV",) if left > 0 else ()
    return Selection(shown[:limit], facts, remarks)


def unless_empty(estimate: Estimate | None) -> Estimate | None:
    """The estimate where it is a number, and else a plain dash: its reason is shown elsewhere."""
    return estimate if estimate is not None and estimate.is_defined else None

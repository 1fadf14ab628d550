"""The parts that every table shares: where the numbers came from, a table that fits 80 columns, a finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from gradscope.render.words.escape import cell, plain
from gradscope.results.source import Source

Column = tuple[str, Literal["left", "right"]]


def source_line(source: Source) -> str:
    """Where the numbers came from: the path, what it was recognized as, and how many rows could not be used."""
    return f"{source.path} ({source.recognized}){rows_set_aside(source)}"


def rows_set_aside(source: Source) -> str:
    """What follows a file in a heading where rows of it were set aside; the most frequent reason stands for all."""
    parts = len(source.quarantined.lost)
    lost = f"; {parts} {'parts' if parts > 1 else 'part'} of it could not be read" if parts else ""
    if not source.quarantined.num_rows:
        return lost
    return f"; {source.quarantined.counted} set aside: {source.quarantined.reasons[0].reason}{lost}"


def new_table(columns: Sequence[Column]) -> Table:
    """An empty table with a rule under its head, whose titles may have two lines, and nothing else."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    height = max(title.count("\n") for title, _ in columns)
    for title, justify in columns:
        on_the_rule = "\n" * (height - title.count("\n")) + title
        table.add_column(Text(on_the_rule), justify=justify, no_wrap=True)
    return table


def add_row(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """Adds a row whose texts are printed as they stand, one per column."""
    table.add_row(*(item if isinstance(item, Text) else cell(item) for item in cells), style=style)


def bullet(finding: str) -> Table:
    """A finding as an item of a list."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text("•"), Text(plain(finding)))
    return grid

"""The parts that every table shares: a heading with its facts, a table that fits 80 columns, findings, footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.catalog.lookup import metric
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import Footnotes
from gradscope.results.source import Source

Column = tuple[str, Literal["left", "right"]]


def heading(title: str, *facts: str) -> Group:
    """A title in bold, with facts such as the path and the number of rollouts dimmed below it, a line each."""
    return Group(cell(title, style="bold"), *(cell(fact, style="dim") for fact in facts if fact))


def source_line(source: Source) -> str:
    """Where the numbers came from: the path, what it was recognized as, and how many rows could not be used."""
    return f"{source.path} ({source.recognized}){rows_set_aside(source)}"


def rows_set_aside(source: Source) -> str:
    """What follows a file in a heading where rows of it were set aside; the most frequent reason stands for all."""
    parts = len(source.quarantined.lost)
    lost = f"; {parts} {'parts' if parts > 1 else 'part'} of it could not be read" if parts else ""
    if not source.quarantined.num_rows:
        return lost
    return f"; {source.quarantined.num_rows:,} rows set aside: {source.quarantined.reasons[0].reason}{lost}"


def new_table(columns: Sequence[Column]) -> Table:
    """An empty table with a rule under its head and nothing else."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title, justify in columns:
        table.add_column(Text(title), justify=justify, no_wrap=True)
    return table


def add_row(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """Adds a row whose texts are printed as they stand, one per column."""
    table.add_row(*(item if isinstance(item, Text) else cell(item) for item in cells), style=style)


def formulas(*names: str) -> Text:
    """The caption that says how metrics of the catalogue were computed, a line each."""
    return Text("\n").join(cell(f"{metric(name).title} = {metric(name).formula}", style="dim") for name in names)


def document(
    head: RenderableType, blocks: Iterable[RenderableType], notes: Footnotes, findings: Sequence[str]
) -> Group:
    """A whole result as it is printed: heading, tables and captions, footnotes, findings; blank lines between."""
    parts: list[RenderableType] = [head]
    for block in blocks:
        parts += [Text(), block]
    footnotes = notes.lines()
    if footnotes:
        parts += [Text(), *(cell(line, style="dim") for line in footnotes)]
    if findings:
        parts += [Text(), *(bullet(finding) for finding in findings)]
    return Group(*parts)


def bullet(finding: str) -> Table:
    """A finding as an item of a list."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text("•"), Text(plain(finding)))
    return grid

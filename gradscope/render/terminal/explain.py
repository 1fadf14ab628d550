"""The metric catalogue for readers: the list of names, and a page for each."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradscope.catalog.lookup import CATALOG, metric
from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.tones import QUIET

_COMMAND = attrgetter("command")
_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "neither": "neither end is better"}


def metric_list() -> Group:
    """Names and titles of all metrics, a table for each command that computes them."""
    parts: list[RenderableType] = []
    for command, entries in groupby(sorted(CATALOG.values(), key=_COMMAND), _COMMAND):
        table = new_table([(f"gradscope {command}", "left"), ("", "left")])
        for entry in entries:
            add_row(table, entry.name, entry.title)
        parts += [table, Text()]
    return Group(*parts, Text("One of them in words: gradscope explain NAME"))


def metric_page(name: str) -> Group:
    """One metric, such as ``pass@4``: meaning, formula, range, direction, movers, source and command."""
    entry = metric(name)
    facts = Table.grid(padding=(0, 2))
    for label, text in (
        ("formula", entry.formula),
        ("range", f"{entry.range}, {_DIRECTIONS[entry.better]}"),
        ("moved by", entry.moved_by),
        ("source", entry.source),
        ("computed by", f"gradscope {entry.command}"),
    ):
        facts.add_row(Text(label, style=QUIET), cell(text))
    head = Text(f"{entry.title} ({name})", style="bold")
    return Group(head, Text(), cell(entry.meaning), Text(), facts)

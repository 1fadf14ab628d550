"""The metric catalogue for readers: what to know first, what a search finds, and a page for each metric."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG, ESSENTIAL, catalog_name, metric, near_names, search
from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words.escape import cell
from gradscope.render.words.tones import QUIET

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "neither": "neither end is better"}
_MOST_LISTED = 5


def essential_metrics() -> Group:
    """The metrics to know first, and how to find the others."""
    rest = f"`gradscope explain WORD` searches all {len(CATALOG):,}; --markdown prints them."
    return _list([CATALOG[name] for name in ESSENTIAL], "The metrics to know first:", rest)


def metric_answer(text: str) -> Group:
    """The page of a metric, or the list of those that words may mean.

    Args:
        text: A name, such as ``pass@4``, or words of names, titles and texts.

    Returns:
        The page where the name is known or one metric alone is near, else at most five, the nearest first.

    Raises:
        UsageError: Nothing is near to the words.
    """
    if catalog_name(text) in CATALOG:
        return _page(text)
    near = [*map(CATALOG.__getitem__, near_names(text, CATALOG)), *search(text)]
    nearest = list(dict.fromkeys(near))
    if not nearest:
        return _page(text)
    if len(nearest) == 1:
        return Group(cell(f"No metric is called {text!r}; the nearest:"), Text(), _page(nearest[0].name))
    more = f"The {_MOST_LISTED} nearest of {len(nearest)}" if len(nearest) > _MOST_LISTED else "Near"
    return _list(nearest[:_MOST_LISTED], f"{more} to {text!r}:", f"$ gradscope explain {nearest[0].name}")


def _list(entries: Sequence[Metric], head: str, foot: str) -> Group:
    table = new_table([("metric", "left"), ("title", "left")])
    for entry in entries:
        add_row(table, entry.name, entry.title)
    return Group(cell(head), Text(), table, Text(), Text(foot))


def _page(name: str) -> Group:
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

"""The metric catalogue for readers: a first overview, search results, a page for each metric, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG, ESSENTIAL, FAMILIES, catalog_name, metric, near_names, search
from gradscope.render.terminal.layout import add_row, new_table
from gradscope.render.words import QUIET, cell

_DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "neither": "neither end is better"}
_MAX_LISTED = 5


def essential_metrics() -> Group:
    """The metrics to know first, and how to find the others."""
    rest = f"`gradscope explain WORD` searches all {len(CATALOG):,}; --markdown prints them."
    return _list([CATALOG[name] for name in ESSENTIAL], "The metrics to know first:", rest)


def metric_answer(text: str) -> Group:
    """The page of a metric by its name, such as ``pass@4``, or at most five that words mean; UsageError for none."""
    if catalog_name(text) in CATALOG:
        return _page(text)
    near = [*map(CATALOG.__getitem__, near_names(text, CATALOG)), *search(text)]
    nearest = list(dict.fromkeys(near))
    if not nearest:
        return _page(text)
    if len(nearest) == 1:
        return Group(cell(f"No metric is called {text!r}; the nearest:"), Text(), _page(nearest[0].name))
    heading = f"The {_MAX_LISTED} nearest of {len(nearest)}" if len(nearest) > _MAX_LISTED else "Near"
    return _list(nearest[:_MAX_LISTED], f"{heading} to {text!r}:", f"$ gradscope explain {nearest[0].name}")


def _list(entries: Sequence[Metric], head: str, foot: str) -> Group:
    table = new_table([("metric", "left"), ("title", "left")])
    for entry in entries:
        add_row(table, entry.name, entry.title)
    return Group(cell(head), Text(), table, Text(), Text(foot))


def _page(name: str) -> Group:
    entry = metric(name)
    facts = {
        "formula": entry.formula,
        "range": f"{entry.range}, {_DIRECTIONS[entry.better]}",
        "moved by": entry.moved_by,
        "source": entry.source,
        "computed by": f"gradscope {entry.command}",
    }
    return fact_page(f"{entry.title} ({name})", entry.meaning, facts)


def fact_page(head: str, meaning: str, facts: Mapping[str, str]) -> Group:
    """A definition: a head, a sentence, and named facts below it."""
    table = Table.grid(padding=(0, 2))
    for label, text in facts.items():
        table.add_row(Text(label, style=QUIET), cell(text))
    return Group(Text(head, style="bold"), Text(), cell(meaning), Text(), table)


_HEAD = "| metric | formula | range | better | source |\n|---|---|---|---|---|\n"


def catalog_markdown() -> str:
    """All families, each under its name."""
    return "\n".join(f"### {name}\n\n{metric_table(entries)}" for name, entries in FAMILIES.items())


def metric_table(entries: Iterable[Metric]) -> str:
    """Name, formula, range, better side and source of some metrics, a line each."""
    rows = [(f"`{entry.name}`", f"`{entry.formula}`", entry.range, entry.better, entry.source) for entry in entries]
    # A bar ends a cell even within code, unless it is escaped.
    return _HEAD + "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)

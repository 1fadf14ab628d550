"""The metric catalogue as Markdown, for pages that list formulas: one table a family."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import FAMILIES

_HEAD = "| metric | formula | range | better | source |\n|---|---|---|---|---|\n"


def catalog_markdown() -> str:
    """All families, each under its name."""
    return "\n".join(f"### {name}\n\n{metric_table(entries)}" for name, entries in FAMILIES.items())


def metric_table(entries: Iterable[Metric]) -> str:
    """Name, formula, range, better side and source of some metrics, a line each."""
    return _HEAD + "".join(_line(entry) for entry in entries)


def _line(entry: Metric) -> str:
    cells = (f"`{entry.name}`", f"`{entry.formula}`", entry.range, entry.better, entry.source)
    # A bar ends a cell even within code, unless it is escaped.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"

"""How results show themselves in Python and in notebooks, from the same rooms as the command line's output.

``gradscope/__init__.py`` names this module to :mod:`gradscope.shown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gradscope.errors import UsageError
from gradscope.estimate import Estimate
from gradscope.render.files import arrow_of, pandas_of, tidy_tables
from gradscope.render.registry import draw_figures, spec_of
from gradscope.render.views.view import table_of_cells, view_table
from gradscope.render.words import plain
from gradscope.results.envelope import fields_of
from gradscope.results.rank import RankReport
from gradscope.results.report import Cell, ColumnStyle, ReportSection, ReportTable, RunIndex, RunReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["arrow_of", "draw_figures", "figure_of", "html_of", "line_of", "pandas_of", "tidy_tables"]

_SENTENCE = re.compile(r"\. (?=[A-Z])")
_WIDTH = 240  # characters of a line: two or three lines of a terminal
_MAX_ROWS = 12  # rows of a table that no section of the page shows: a cell of a notebook is read without scrolling


def line_of(result: object) -> str:
    """The type, its sources, and the first sentence of the answer."""
    first, *rest = (source.path for source in spec_of(result).sources(result))
    rest_in_words = f" and {len(rest)} more" if rest else ""
    sentence = _SENTENCE.split(_answer(result))[0].rstrip(".")
    return plain(f"<{type(result).__name__} of {first}{rest_in_words}: {sentence}", limit=_WIDTH) + ">"


def html_of(result: object) -> str:
    """The sections of the report's page that a result answers, as one ``<div>``."""
    from gradscope.diagnostics.report.of_result import sections_of
    from gradscope.render.html.page import render_fragment, strip_of

    sections = [_with_table(section, result) for section in sections_of(result)]
    return render_fragment(sections, strip_of(result) if isinstance(result, RunReport) else ())


def figure_of(result: object, figure: str | None) -> Figure:
    """One of these figures; None: the first.

    Raises:
        UsageError: There is no such figure, or none at all.
    """
    drawn = draw_figures(result)
    wanted = next(iter(drawn), None) if figure is None else figure
    if wanted not in drawn:
        lacking = "no figure" if figure is None else f"no figure {figure!r}"
        hint = f"There are: {', '.join(drawn)}." if drawn else "to_arrow() has its numbers."
        raise UsageError(f"This {type(result).__name__} has {lacking}.", hint=hint)
    return drawn[wanted]


def _answer(result: object) -> str:
    from gradscope.diagnostics.report.of_result import sections_of

    if isinstance(result, RunReport):
        count = {
            kind: sum(section.severity == kind for section in result.sections) for kind in ("problem", "look", "fine")
        }
        return ", ".join(f"{number} {kind}" for kind, number in count.items() if number) or "nothing to be told"
    return next((section.headline for section in sections_of(result) if section.headline), "nothing found")


def _with_table(section: ReportSection, result: object) -> ReportSection:
    """A section without table gets the beginning of the result's main table."""
    if section.tables or section.missing is not None or isinstance(result, RunReport | RunIndex):
        return section
    declared = _declared(result) if isinstance(result, RankReport) else ()
    tables = (_table(name, list(records)) for name, records in spec_of(result).csv(result).items())
    return replace(section, tables=next(filter(None, chain(declared, tables)), ()))


def _declared(report: RankReport) -> Iterator[tuple[ReportTable, ...]]:
    """The tables that ``rank --show`` has of these rows."""
    from gradscope.render.views.rank import ROLLOUT_VIEWS
    from gradscope.render.views.rank_parts import PART_VIEWS

    for name, views in {**PART_VIEWS, **ROLLOUT_VIEWS}.items():
        for view in views if isinstance(views, tuple) else (views,):
            yield view_table(view, report, f"As rank --show {name}; to_pandas() has every number")


def _table(name: str, records: list[Any]) -> tuple[ReportTable, ...]:
    rows = [_cells(record) for record in islice(records, _MAX_ROWS)]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    numbers = {title for title in titles for row in rows if isinstance(row.get(title), int | float | Estimate)}
    caption = f"The first {_MAX_ROWS} of {len(records)} rows" if len(records) > _MAX_ROWS else "All rows"
    heads: list[tuple[str, ColumnStyle]] = [(title, "norm" if title in numbers else "text") for title in titles]
    return table_of_cells(
        f"{caption} of to_pandas({name!r}).", heads, (tuple(row.get(title) for title in titles) for row in rows)
    )


def _cells(record: Any) -> dict[str, Cell]:
    """The numbers and words of a record itself; nested ones are in the data frame."""
    named = record.items() if isinstance(record, Mapping) else fields_of(record)
    texts = {name: ("no", "yes")[value] if isinstance(value, bool) else value for name, value in named}
    return {name: value for name, value in texts.items() if isinstance(value, str | int | float | Estimate)}

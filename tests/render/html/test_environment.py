"""No text of a result becomes markup: every text field of a report is tried, whether or not a page shows it today."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from itertools import count
from typing import Any

import pytest
from jinja2 import UndefinedError

from gradscope.render.html.environment import render
from gradscope.render.html.index_page import render_index
from gradscope.render.html.page import render_page
from tests.render.html.test_index_page import INDEX
from tests.render.report_example import run_report

CHOICES = {"kind", "style", "severity"}
"""Fields whose values are the program's own few words."""


def poisoned(record: Any, numbers: count[int]) -> Any:
    """The same record with markup and a control character in each of its texts."""
    if isinstance(record, str):
        return f"<b id='t{next(numbers)}'>\x1b</title></style>\"'&<!--{{{{7*7}}}}"
    if isinstance(record, tuple):
        return tuple(poisoned(item, numbers) for item in record)
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        names = [field.name for field in dataclasses.fields(record) if field.name not in CHOICES]
        return dataclasses.replace(record, **{name: poisoned(getattr(record, name), numbers) for name in names})
    return record


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.comments: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.mark.parametrize(
    ("page", "num_fields"),
    [(render_page(poisoned(run_report(), count())), 45), (render_index(poisoned(INDEX, count())), 12)],
    ids=["report", "index"],
)
def test_markup_in_any_text_field_stays_text(page: str, num_fields: int) -> None:
    tags = Tags(page)
    assert "b" not in tags.seen
    assert tags.comments == []
    assert "<b id=" not in page
    assert "\x1b" not in page
    assert page.count("</title>") == page.count("</style>") == 1
    assert "{{7*7}}" in page
    assert len({part.split("&#39;")[1] for part in page.split("&lt;b id=")[1:]}) >= num_fields


def test_a_template_that_asks_for_what_it_was_not_given_fails() -> None:
    with pytest.raises(UndefinedError, match="'report' is undefined"):
        render("report.html", title="t", policy="", style="", script="", version="")

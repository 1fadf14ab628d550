from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG, FAMILIES
from gradscope.render.markdown import catalog_markdown, metric_table
from tests.conftest import REPOSITORY

TABLE = re.compile(r"<!-- catalogue: (?P<family>[^>]*?) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
TABLES = [
    (page, found["family"], found["text"])
    for page in sorted((REPOSITORY / "docs").glob("*.md"))
    for found in TABLE.finditer(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "family", "text"), TABLES, ids=[f"{page.stem}-{name}" for page, name, _ in TABLES])
def test_a_table_of_the_docs_is_what_explain_prints(page: Path, family: str, text: str) -> None:
    assert text == metric_table(FAMILIES[family]), f"copy it from gradscope explain --markdown into {page.name}"


def test_the_docs_have_tables_to_hold() -> None:
    assert {(page.name, family) for page, family, _ in TABLES} == {
        ("compare.md", "comparisons"),
        ("rank.md", "held-out prompts"),
        ("rank.md", "interference"),
        ("rank.md", "nulls"),
        ("update.md", "weight updates"),
    }


def test_every_metric_has_one_line_of_five_cells() -> None:
    lines = [line for line in catalog_markdown().splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", line) for line in lines]
    assert [row[1].strip(" `") for row in cells] == list(CATALOG)
    assert {len(row) for row in cells} == {7}


def test_every_family_has_its_heading_in_order() -> None:
    headings = [line.removeprefix("### ") for line in catalog_markdown().splitlines() if line.startswith("#")]
    assert headings == list(FAMILIES)


def test_a_bar_in_a_formula_ends_no_cell() -> None:
    texts = dict.fromkeys(("title", "meaning", "moved_by", "command"), "-")
    entry = Metric(name="x", formula="|a| / |b|", range="[0, 1]", better="lower", source="a | b", **texts)
    assert metric_table([entry]).splitlines()[2] == (r"| `x` | `\|a\| / \|b\|` | [0, 1] | lower | a \| b |")

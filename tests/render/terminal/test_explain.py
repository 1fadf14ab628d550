import re

from docs.hooks.reference import COMMANDS, page_of
from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG, FAMILIES
from gradscope.render.terminal.explain import catalog_markdown, metric_table

PAGES = "".join(page_of(name) for name in COMMANDS)


def test_every_metric_of_a_command_is_in_the_reference() -> None:
    assert [name for name, entry in CATALOG.items() if entry.command in COMMANDS and f"| `{name}` |" not in PAGES] == []


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

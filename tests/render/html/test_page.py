"""The page as a document: complete, self-contained, the same every time, and deaf to what a log says."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from gradscope.render.html.page import render_fragment, render_page
from tests.render.report_example import run_report

PAGE = render_page(run_report())
VOID = {"meta", "link", "line", "rect", "circle", "polyline", "polygon"}


class Elements(HTMLParser):
    """Every element with its attributes; complains where one is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def elements() -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(PAGE)
    assert parser.open == []
    return parser.found


def test_nothing_is_fetched(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    links = [(tag, attributes["href"]) for tag, attributes in elements if "href" in attributes]
    assert all(target == "data:," or str(target).startswith("#") for _, target in links)
    assert not [tag for tag, attributes in elements if "src" in attributes or "srcset" in attributes]
    style = re.search(r"<style>(.*?)</style>", PAGE, re.DOTALL)[1]  # type: ignore[index]
    assert "@import" not in style
    assert "url(" not in style


def test_a_log_makes_no_element_and_no_handler(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    tags = [tag for tag, _ in elements]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert "\x1b" not in PAGE
    assert "\u202e" not in PAGE


def test_only_the_own_script_may_run(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    policy = next(str(a["content"]) for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", PAGE, re.DOTALL)[1]  # type: ignore[index]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_same_result_gives_the_same_bytes() -> None:
    assert render_page(run_report()) == PAGE


def test_links_and_labels_lead_somewhere(elements: list[tuple[str, dict[str, str | None]]]) -> None:
    ids = [str(attributes["id"]) for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"])[1:] for tag, a in elements if tag == "a"]
    labels = [str(a["aria-labelledby"]) for _, a in elements if "aria-labelledby" in a]
    assert set(targets + labels) <= set(ids)


def test_a_section_without_data_says_what_to_log() -> None:
    section = PAGE[PAGE.index('<section id="coverage">') :]
    assert "Not in this log." in section
    assert "Log them." in section
    assert "<figure>" not in section


def test_cells_keep_their_unrounded_number_and_their_reason() -> None:
    assert 'data-sort="0.25">0.250 [0.10, 0.40]</td>' in PAGE
    assert "—¹</td>" in PAGE
    assert r"¹ no reward in &lt;script&gt;[red]\x1b[31mred" in PAGE


def test_tokens_are_shaded_by_strength_and_marked_by_direction() -> None:
    """The strongest is the darkest, a fall is another class than a rise, and what was not measured has neither."""
    assert 'class="up h8" title="norm 2 &lt;script&gt;' in PAGE
    assert '<span class="down h3" title="norm 0.6">a↵\n</span>' in PAGE
    assert '<span class="up h0" title="norm 0">plain</span>' in PAGE
    assert '<span class="unseen" title="not measured">masked</span>' in PAGE


def test_a_chart_of_several_series_has_a_legend_that_needs_no_color() -> None:
    assert PAGE.count('<ul class="legend">') == 2
    legend = PAGE[PAGE.index('<ul class="legend">') :]
    assert '<circle class="mark s0"' in legend[: legend.index("</ul>")]
    assert '<polygon class="mark s1"' in legend[: legend.index("</ul>")]


def test_a_fragment_brings_its_style_and_none_for_what_is_around_it() -> None:
    html = render_fragment(run_report().by_severity)
    assert html.startswith('<div class="gradscope"><style>.gradscope {')
    style = html[html.index("<style>") : html.index("</style>")]
    assert "--paper" in style
    assert not re.search(r"(?:^|[{}\s])(?::root|html|body)\b[^;{}]*\{", style)
    assert style.count("{") == style.count("}")
    parser = Elements()
    parser.feed(html)
    assert parser.open == []
    assert "script" not in {tag for tag, _ in parser.found}

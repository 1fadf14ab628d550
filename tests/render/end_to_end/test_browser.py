"""The page in a real browser: it renders, says nothing on the console, asks for nothing, and runs nothing of a log."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gradscope.render.html.page import render_index, render_page
from tests.render.end_to_end.browser import AUDIT, NEEDS_CHROMIUM, VIEWS, Browser, judged, look_at, opened, started
from tests.render.examples import run_index, run_report

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


def test_a_page_that_asks_and_complains_is_noticed(tmp_path: Path) -> None:
    bad = look_at("<img src='http://127.0.0.1:9/pixel'><script>console.error('no')</script>", tmp_path)
    assert "http://127.0.0.1:9/pixel" in bad.urls
    assert any("no" in line for line in bad.console)


def test_the_page_renders_with_its_script_silently_without_a_request_and_runs_nothing_of_a_log(tmp_path: Path) -> None:
    page = look_at(render_page(run_report()), tmp_path)
    assert "How much of the batch carries a gradient?" in page.dom
    assert (page.dom.count("<button"), page.dom.count("<select")) == (6, 4)
    assert page.console == []
    assert not [url for url in page.urls if not url.startswith(("file:", "data:"))]
    title = re.search(r"<title>(.*?)</title>", page.dom)
    assert title is not None
    assert "pwned" not in title[1]
    assert "<img" not in page.dom


def page_of(text: str, folder: Path) -> Path:
    page = folder / "page.html"
    page.write_text(text, encoding="utf-8")
    return page


def test_the_audit_notices_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    bad = """<body><p style='color:#999;background:#fff'>pale</p><button></button><p style='width:9999px'>w</p>
        <p id=a style='font-size:5px'>tiny</p><p id=a>twice</p><h3>deep</h3><a href='#gone'>nowhere</a>
        <svg width=100 height=40><text x=90 y=20>beyond</text><text x=0 y=20>one</text><text x=5 y=20>two</text></svg>
        <script>console.error('no')</script><img src='http://127.0.0.1:9/pixel'>"""
    page = page_of(bad, tmp_path)
    with opened(browser, page) as tab:
        assert any("no" in words for words in tab.console())
        assert tab.requests() == ["http://127.0.0.1:9/pixel"]
        result = tab.run(AUDIT)
    assert ["pale" in complaint for complaint in result["contrast"]] == [True]
    assert ["tiny" in complaint for complaint in result["small"]] == [True]
    assert ["beyond" in complaint for complaint in result["cut"]] == [True]
    assert ["one" in complaint and "two" in complaint for complaint in result["overlap"]] == [True]
    assert [complaint.startswith("BUTTON") for complaint in result["unnamed"]] == [True]
    assert ["BUTTON" in complaint for complaint in result["target"]] == [True]
    assert [complaint[:6] for complaint in result["structure"]] == ["two el", "#gone ", "H3 aft", "no lan"]
    assert result["wide"]
    _, wrong = judged(browser, page)
    assert {complaint.split(":")[0] for complaint in wrong} == set(VIEWS)


@pytest.mark.parametrize("page", [lambda: render_page(run_report()), lambda: render_index(run_index())])
def test_nothing_is_wrong_with_a_page(browser: Browser, page: Callable[[], str], tmp_path: Path) -> None:
    figures, wrong = judged(browser, page_of(page(), tmp_path))
    assert wrong == []
    assert figures.sheets <= 4


def test_the_script_works(browser: Browser, tmp_path: Path) -> None:
    """Its own try-out: the cursor under a key, rollouts by kind and share, steps chosen on a chart, a table sorted."""
    with opened(browser, page_of(render_page(run_report()), tmp_path)) as tab:
        result = tab.run((Path(__file__).parent / "trial.js").read_text(encoding="utf-8"))
        assert tab.console() == []
    assert result["tip"].splitlines()[0] == "step 2"
    assert result["tip"].splitlines()[2] == "gaps  none"
    assert result["cursors"] == 2
    assert result["shown"] == ["1 of 2 groups", 1]
    assert result["order"] == ["0.4", "0.1"]
    assert result["chosen"] == [2, 0]
    assert result["released"] == [0, 2]
    assert result["sorted"] == ["9", "10", "100"]
    assert result["copy"] == ["Copy"]


def test_a_table_of_many_rows_has_a_filter(browser: Browser, tmp_path: Path) -> None:
    report = run_report()
    section = next(section for section in report.sections if section.tables)
    table = section.tables[0]
    many = replace(section, tables=(replace(table, rows=table.rows * 8),))
    with opened(browser, page_of(render_page(replace(report, sections=(many,))), tmp_path)) as tab:
        shown = tab.run(
            """(() => {
              const filter = document.querySelector(".tools input");
              const rows = [...document.querySelector(".tools + .table tbody").rows];
              return ["no such row", ""].map((word) => {
                filter.value = word;
                filter.dispatchEvent(new Event("input"));
                return rows.filter((row) => row.checkVisibility()).length;
              });
            })()"""
        )
    assert shown == [0, 8 * len(table.rows)]


def test_a_link_opens_what_it_leads_to(browser: Browser, tmp_path: Path) -> None:
    """What is fine is folded; a link to it, or to what lies in it, opens it, and no script is needed to read it."""
    report = run_report()
    section = next(section for section in report.sections if section.texts)
    page = page_of(render_page(replace(report, sections=(replace(section, severity="fine"),))), tmp_path)
    inner = f"{section.name}-text-1"
    with opened(browser, page) as tab:
        is_open = f"document.querySelector('#{section.name} > details').open"
        assert tab.run(is_open) is False
        followed = f"new Promise(done => {{ addEventListener('hashchange', () => done({is_open})); "
        assert tab.run(f"{followed} location.hash = '#{inner}'; }})") is True

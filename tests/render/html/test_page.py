import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import count
from typing import Any
from xml.etree import ElementTree

import pytest
from jinja2 import UndefinedError
from msgspec import Struct
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.html import page as pages
from gradscope.render.html.chart import CARD
from gradscope.render.html.page import MAX_ROWS, PageCell, page_table, windowed_table
from gradscope.results.report import (
    Cell,
    Chart,
    ChartKind,
    ColumnStyle,
    KeyNumber,
    ReportColumn,
    ReportTable,
    Series,
    ShadedToken,
)
from tests.render.examples import run_index, run_report

PAGE = pages.render_page(run_report())
PARTS: Any = pages._environment().get_template("parts.html").module
VOID = {"meta", "link", "line", "rect", "circle", "polyline", "polygon"}


Element = tuple[str, dict[str, str | None]]


class Elements(HTMLParser):
    """Every element with its attributes, and every comment; complains where an element is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.open: list[str] = []
        self.comments: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.fixture(scope="module")
def elements() -> list[Element]:
    assert pages.render_page(run_report()) == PAGE
    return Elements(PAGE).elements


def test_nothing_is_fetched(elements: list[Element]) -> None:
    links = [(tag, attributes["href"]) for tag, attributes in elements if "href" in attributes]
    assert all(target == "data:," or str(target).startswith("#") for _, target in links)
    assert not [tag for tag, attributes in elements if "src" in attributes or "srcset" in attributes]
    style = re.search(r"<style>(.*?)</style>", PAGE, re.DOTALL)[1]  # type: ignore[index]
    assert "@import" not in style
    assert "url(" not in style


def test_a_log_makes_no_element_and_no_handler(elements: list[Element]) -> None:
    tags = [tag for tag, _ in elements]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert "\x1b" not in PAGE
    assert "\u202e" not in PAGE


def test_only_the_own_script_may_run(elements: list[Element]) -> None:
    policy = next(str(a["content"]) for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", PAGE, re.DOTALL)[1]  # type: ignore[index]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_links_and_labels_lead_somewhere(elements: list[Element]) -> None:
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
    html = pages.render_fragment(run_report().by_severity)
    assert html.startswith('<div class="gradscope"><style>.gradscope {')
    style = html[html.index("<style>") : html.index("</style>")]
    assert "--paper" in style
    assert not re.search(r"(?:^|[{}\s])(?::root|html|body)\b[^;{}]*\{", style)
    assert style.count("{") == style.count("}")
    assert "script" not in {tag for tag, _ in Elements(html).elements}


CHOICES = {"kind", "style", "severity"}  # fields whose values are the program's own few words


def poisoned(record: Any, numbers: Iterator[int]) -> Any:
    """The same record with markup and a control character in each of its texts."""
    if isinstance(record, str):
        return f"<b id='t{next(numbers)}'>\x1b</title></style>\"'&<!--{{{{7*7}}}}"
    if isinstance(record, tuple):
        return tuple(poisoned(item, numbers) for item in record)
    if isinstance(record, Struct):
        names = [name for name in record.__struct_fields__ if name not in CHOICES]
        return replace(record, **{name: poisoned(getattr(record, name), numbers) for name in names})
    return record


@pytest.mark.parametrize(
    ("page", "num_fields"),
    [
        (pages.render_page(poisoned(run_report(), count())), 45),
        (pages.render_index(poisoned(run_index(), count())), 12),
    ],
    ids=["report", "index"],
)
def test_markup_in_any_text_field_stays_text(page: str, num_fields: int) -> None:
    parser = Elements(page)
    assert "b" not in {tag for tag, _ in parser.elements}
    assert parser.comments == []
    assert "<b id=" not in page
    assert page.count("<script>") == 1
    assert "\x1b" not in page
    assert page.count("</title>") == page.count("</style>") == 1
    assert "{{7*7}}" in page
    assert len({part.split("&#39;")[1] for part in page.split("&lt;b id=")[1:]}) >= num_fields


def test_a_template_that_asks_for_what_it_was_not_given_fails() -> None:
    with pytest.raises(UndefinedError, match="'report' is undefined"):
        pages._environment().get_template("report.html").render(title="t", policy="", style="", script="", version="")


REPORT = run_report()
MIXED, NO_GRADIENT = REPORT.rollouts


def test_a_group_is_described_by_its_reward_and_its_part_of_the_gradient() -> None:
    assert PARTS.summary(MIXED) == " · mean reward 1 · +40.0 % of the gradient"
    assert (pages.share_of_group(MIXED), pages.share_of_group(NO_GRADIENT)) == ("0.4", "0.1")
    unknown = replace(MIXED, rollouts=MIXED.rollouts[1:])
    assert (PARTS.summary(unknown), pages.share_of_group(unknown)) == ("", "")


def test_a_rollout_is_described_by_what_was_logged_and_measured_of_it() -> None:
    assert [PARTS.rollout_line(rollout) for rollout in MIXED.rollouts] == [
        "#0 · reward 1 · advantage 0.7 · +40.0 % of the gradient",
        "#1",
    ]


def test_a_rollout_that_was_measured_leads_to_its_tokens() -> None:
    signal = REPORT.sections[0]
    named = replace(signal, texts=(replace(signal.texts[0], title="1:1 #1"),))
    report = replace(REPORT, sections=(named, *REPORT.sections[1:]))
    assert pages.token_texts_of(report) == {("1:1", 1): "signal-text-1"}
    page = pages.render_page(report)
    assert 'id="signal-text-1"' in page
    assert '<a href="#signal-text-1">token by token</a>' in page
    assert 'data-like="signal-text-1"' in page


def test_one_group_of_each_kind_is_to_be_read_first() -> None:
    dead, side = replace(NO_GRADIENT, kind="all fail"), replace(MIXED, kind="side reward", step=9)
    chosen = pages.to_read_of((dead, replace(NO_GRADIENT, kind="mixed"), MIXED, side))
    assert [group for _, group in chosen] == [dead, MIXED, side]
    assert [words.partition(":")[0] for words, _ in chosen] == ["Dead", "Live", "Decided by a side reward"]
    assert pages.to_read_of((MIXED, MIXED)) == []
    assert pages.render_page(replace(REPORT, rollouts=(dead, MIXED))).count('id="to-read"') == 1
    assert 'id="to-read"' not in pages.render_page(replace(REPORT, rollouts=(MIXED,)))


@pytest.mark.parametrize(
    ("advantages", "shades"),
    [((0.9, -0.3), (" up h2", " down h1")), ((0.0, None), ("", "")), ((-2.0, 1.0), (" down h2", " up h1"))],
)
def test_a_completion_is_shaded_by_its_advantage(advantages: tuple[float | None, ...], shades: tuple[str, ...]) -> None:
    rollouts = tuple(
        replace(MIXED.rollouts[0], sample=sample, advantage=advantage) for sample, advantage in enumerate(advantages)
    )
    group = replace(MIXED, rollouts=rollouts)
    assert tuple(pages.advantage_shades(group)) == shades


def test_without_advantages_a_completion_is_shaded_by_its_reward_beside_the_others() -> None:
    rewards = (1.0, 0.0, 0.0, None)
    rollouts = tuple(replace(MIXED.rollouts[0], sample=n, advantage=None, reward=r) for n, r in enumerate(rewards))
    group = replace(MIXED, rollouts=rollouts)
    assert pages.advantage_shades(group) == [" up h2", " down h1", " down h1", ""]
    (_, first), _ = pages.to_read_of((replace(group, kind="mixed"), replace(NO_GRADIENT, kind="all fail")))[::-1]
    assert [rollout.sample for rollout in first.rollouts] == [0, 1, 2, 3]
    (_, first), _ = pages.to_read_of((replace(group, rollouts=rollouts[::-1]), replace(NO_GRADIENT, kind="all fail")))[
        ::-1
    ]
    assert first.rollouts[0].sample == 0


def chart_of(kind: ChartKind, *values: float | None) -> Chart:
    return Chart(title="", kind=kind, places=(1, 2), series=(Series(name="", values=values),))


@pytest.mark.parametrize(
    ("chart", "shows"),
    [
        (chart_of("stack", 0.0, 0.0), False),
        (chart_of("stack", 0.0, 0.5), True),
        (chart_of("lines", 0.0, 0.0), True),
        (chart_of("lines", None, None), False),
    ],
)
def test_a_chart_of_nothing_is_left_out(chart: Chart, shows: bool) -> None:
    assert pages.shows_something(chart) is shows
    section = replace(REPORT.sections[0], charts=(chart,))
    assert ('class="chart"' in pages.render_fragment((section,))) is shows


def test_what_is_fine_and_what_is_much_is_folded_and_what_is_missing_named() -> None:
    findings = tuple(f"Finding {number}." for number in range(9))
    section = replace(REPORT.sections[0], severity="fine", missing=None, findings=findings)
    unknown = replace(REPORT.strip[0], value=Estimate.undefined_because("nothing was logged"))
    page = pages.render_page(replace(REPORT, sections=(section,), strip=(unknown,)))
    answer = page.partition(f'<section id="{section.name}"')[2]
    assert answer.index("Finding 0.") < answer.index("<summary>Its numbers") < answer.index("Finding 1.")
    assert "<summary>5 more</summary>" in answer
    assert '<p class="facts absent">Not known: ' in page
    assert 'title="nothing was logged"' in page
    assert "<summary>Its numbers" not in pages.render_fragment((section,))


def test_texts_keep_their_breaks_and_a_report_without_texts_has_no_list_of_rollouts() -> None:
    assert '<p class="text">no\n  indent</p>' in PAGE
    assert 'id="rollouts"' in PAGE
    assert 'id="rollouts"' not in pages.render_page(replace(REPORT, rollouts=()))


@pytest.mark.parametrize(
    ("strength", "is_raised", "classes"),
    [
        (1.0, True, f"up h{pages.NUM_SHADES}"),
        (0.3, False, "down h3"),
        (0.125, True, "up h2"),
        (0.124, True, "up h1"),
        (1e-9, False, "down h1"),
        (0.0, True, "up h0"),
        (None, True, "unseen"),
    ],
)
def test_the_stronger_the_darker(strength: float | None, is_raised: bool, classes: str) -> None:
    assert pages.shade_of(ShadedToken(text="a", strength=strength, is_raised=is_raised, note="")) == classes


def strip(*numbers: KeyNumber) -> str:
    report = run_report()
    return pages.render_fragment((), pages.strip_of(replace(report, strip=numbers) if numbers else report))


def test_a_share_is_in_per_cent_with_its_interval_and_an_unknown_number_says_why() -> None:
    (dead,) = re.findall('<li class="look"><a href="#signal">.*?</li>', strip(), re.DOTALL)
    assert '<span class="value">25.0\N{NO-BREAK SPACE}%</span> <span class="ends">[10.0 %, 40.0 %]</span>' in dead
    assert 'Not known: <a href="#coverage" title="no samples in' in strip()


def test_a_second_number_stands_behind_an_arrow() -> None:
    pair = replace(
        run_report().strip[1], value=Estimate(value=0.5, low=0.4, high=0.6, num_units=9), then=Estimate.exact(0.75)
    )
    assert (
        '>50.0\N{NO-BREAK SPACE}% → 75.0\N{NO-BREAK SPACE}%</span> <span class="ends">[40.0 %, 60.0 %]</span>'
        in strip(pair)
    )


def test_the_line_has_the_course_without_its_gaps() -> None:
    (line,) = re.findall(r'<svg class="spark" .*?</svg>', strip())
    indices = [
        tuple(map(float, point.split(","))) for point in ElementTree.fromstring(line)[0].get("points", "").split()
    ]
    assert [x for x, _ in indices] == [2.0, 118.0]
    assert indices[0][1] < indices[1][1]


def test_a_course_of_one_step_is_none_and_a_long_one_is_put_together() -> None:
    def line(length: int) -> str:
        number = KeyNumber(
            name="replay",
            title="norm",
            value=Estimate.exact(1.0),
            style="norm",
            places=tuple(range(length)),
            course=tuple(float(step) for step in range(length)),
        )
        return pages.spark_of(number)

    assert line(1) == ""
    assert "<svg" not in strip(replace(run_report().strip[0], course=(), places=()))
    assert 100 < line(1000).count(",") <= 160


INDEX = run_index()
INDEX_PAGE = pages.render_index(INDEX)


def test_every_run_has_the_curves_that_its_log_holds() -> None:
    assert pages.render_index(INDEX) == INDEX_PAGE
    assert "not read: &lt;script&gt;" in INDEX_PAGE
    assert INDEX_PAGE.count("<article ") == 2
    assert INDEX_PAGE.count('<figure class="chart">') == 4
    assert "gradient norm, as logged" not in INDEX_PAGE


def test_a_kind_of_curve_has_one_scale_on_all_runs() -> None:
    ends = [points.split()[-1].split(",")[1] for points in re.findall(r'class="line s0" points="([^"]*)"', INDEX_PAGE)]
    highest_of_quiet, highest_of_loud = float(ends[1]), float(ends[4])
    assert highest_of_loud == CARD.top
    assert highest_of_quiet == CARD.top + 0.75 * (CARD.height - CARD.top - CARD.bottom)


def shown(cell: Cell, style: ColumnStyle = "share") -> PageCell:
    return page_table(ReportTable(caption="", columns=(ReportColumn(title="", style=style),), rows=((cell,),))).rows[0][
        0
    ]


@pytest.mark.parametrize(
    ("cell", "style", "expected"),
    [
        (0.25, "share", PageCell(kind="number", text="0.250", sort="0.25")),
        (1234, "count", PageCell(kind="number", text="1,234", sort="1234.0")),
        (
            Estimate(value=0.125, low=0.1, high=0.4),
            "share",
            PageCell(kind="number", text="0.125 [0.10, 0.40]", sort="0.125"),
        ),
        (None, "share", PageCell(kind="number", text="")),
        (None, "text", PageCell(kind="text", text="")),
        ("two\nlines", "text", PageCell(kind="text", text="two\nlines")),
        ("a" * 31, "text", PageCell(kind="text long", text="a" * 31)),
        ("match", "norm", PageCell(kind="text", text="match")),
    ],
)
def test_a_cell_reads_by_its_column_and_sorts_by_its_number(cell: Cell, style: ColumnStyle, expected: PageCell) -> None:
    assert shown(cell, style) == expected


def test_a_reason_is_noted_once_and_sorts_by_nothing() -> None:
    missing, other = Estimate.undefined_because("no reward"), Estimate.undefined_because("no tokens")
    columns = (ReportColumn(title="a", style="share"), ReportColumn(title="b", style="share"))
    table = page_table(ReportTable(caption="", columns=columns, rows=((missing, other), (missing, 0.5))))
    assert [[cell.text for cell in row] for row in table.rows] == [["—¹", "—²"], ["—¹", "0.500"]]
    assert table.rows[0][0].sort is None
    assert table.notes == ("¹ no reward", "² no tokens")


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="zip"):
        page_table(ReportTable(caption="", columns=(ReportColumn(title="a"),), rows=(("x", "y"),)))


def long_table(length: int) -> ReportTable:
    rows = tuple(
        (step, Estimate.exact(step), None if step % 2 else 0.5, "dead" if step % 4 == 0 else "live", None)
        for step in range(1, length + 1)
    )
    columns = (ReportColumn(title="step", style="count"), *(ReportColumn(title=name, style="norm") for name in "abcd"))
    return ReportTable(caption="Each step", columns=columns, rows=rows, by_step=True)


def test_a_long_table_has_a_row_a_window() -> None:
    long = windowed_table(long_table(1000))
    assert len(long.rows) == MAX_ROWS
    assert long.rows[0] == ("1-10", 5.5, 0.5, "live 8, dead 2", None)
    assert long.rows[-1][0] == "991-1000"
    assert "Each row is 10 steps" in long.caption


def test_short_tables_and_those_of_other_things_are_left_alone() -> None:
    short = long_table(MAX_ROWS)
    assert windowed_table(short) is short
    other = ReportTable(caption="", columns=short.columns, rows=long_table(1000).rows)
    assert windowed_table(other) is other


def test_words_that_are_alike_are_said_once() -> None:
    alike = ReportTable(caption="", columns=long_table(1).columns[:2], rows=((1, "match"),) * 300, by_step=True)
    assert windowed_table(alike).rows[0] == ("1-1", "match")

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from gradscope.render.html.bars import draw_bars
from gradscope.results.report import Chart, Series


def drawn(names: tuple[str, ...], values: tuple[float | None, ...]) -> ElementTree.Element:
    chart = Chart(title="t", kind="bars", places=names, series=(Series(name="s", values=values),), x_label="share")
    return ElementTree.fromstring(draw_bars(chart, Markup(""), Markup("")))


def test_a_negative_bar_ends_where_a_positive_one_begins() -> None:
    up, down = drawn(("up", "down"), (0.7, -0.2)).iter("rect")
    assert float(down.get("x", 0)) + float(down.get("width", 0)) == pytest.approx(float(up.get("x", 0)), abs=0.11)
    assert float(down.get("width", 0)) / float(up.get("width", 0)) == pytest.approx(2 / 7, abs=0.001)
    assert (up.get("class"), down.get("class")) == ("bar b0", "bar b1")


def test_numbers_stand_beyond_the_ends_of_their_bars() -> None:
    svg = drawn(("up", "down"), (0.7, -0.2))
    up, down = svg.iter("rect")
    labels = {text.text: text for text in svg.iter("text")}
    assert float(labels["0.700"].get("x", 0)) == pytest.approx(float(up.get("x", 0)) + float(up.get("width", 0)) + 6)
    assert float(labels["-0.200"].get("x", 0)) == pytest.approx(float(down.get("x", 0)) - 6)


def test_a_long_name_is_cut_and_markup_in_it_stays_text() -> None:
    texts = [text.text for text in drawn(("a" * 25, "<b>&"), (1.0, None)).iter("text")]
    assert texts == ["a" * 23 + "…", "1.000", "<b>&", "0.000", "share"]


def test_bars_of_nothing_have_no_width() -> None:
    assert [bar.get("width") for bar in drawn(("x", "y"), (0.0, None)).iter("rect")] == ["0", "0"]

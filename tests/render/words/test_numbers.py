"""How a number reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.render.terminal.sparkline import sparkline
from gradscope.render.words.numbers import Footnotes, Style, format_estimate, format_number, key_number_words
from gradscope.results.report import KeyNumber, NumberStyle


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0.0, "share", "0.000"),
        (1.0, "share", "1.000"),
        (0.0004, "share", "4.0e-04"),
        (-1e-5, "gap", "-1.0e-05"),
        (0.4039, "gap", "+0.404"),
        (5.349, "rank", "5.35"),
        (1234567.0, "count", "1,234,567"),
        (0.548219, "norm", "0.5482"),
    ],
)
def test_each_kind_of_number_has_its_digits(value: float, style: Style, text: str) -> None:
    assert format_number(value, style) == text


@pytest.mark.parametrize(
    ("estimate", "style", "text"),
    [
        (Estimate(value=0.4125, low=0.331, high=0.488), "share", "0.412 [0.33, 0.49]"),
        (Estimate(value=0.01, low=0.001, high=0.02), "share", "0.010 [0.001, 0.020]"),
        (Estimate(value=0.2, low=-0.1, high=0.5), "gap", "+0.200 [-0.10, +0.50]"),
        (Estimate(value=3.0, low=2.0, high=4.0), "rank", "3.00 [2.00, 4.00]"),
        (Estimate.exact(0.5), "share", "0.500"),
    ],
)
def test_an_interval_follows_its_value(estimate: Estimate, style: Style, text: str) -> None:
    assert format_estimate(estimate, Footnotes(), style) == text


def test_an_interval_can_be_left_out() -> None:
    assert format_estimate(Estimate(value=0.4, low=0.3, high=0.5), Footnotes(), "share", interval=False) == "0.400"


def test_an_undefined_number_is_a_dash_with_its_reason_said_once() -> None:
    notes = Footnotes()
    marks = [
        format_estimate(Estimate.undefined_because(why), notes, "share")
        for why in ("no samples", "k > n", "no samples")
    ]
    assert marks == ["—¹", "—²", "—¹"]
    assert notes.lines() == ("¹ no samples", "² k > n")


def test_remarks_stand_behind_the_footnotes_and_have_no_number() -> None:
    notes = Footnotes()
    notes.remark("3 more rows are in the CSV")
    assert notes.number("why") == "¹"
    assert [notes.number(f"{place}") for place in range(11)][-1] == "¹²"
    assert (notes.lines()[0], notes.lines()[-1]) == ("¹ why", "3 more rows are in the CSV")


def test_a_scale_without_height_is_flat() -> None:
    assert sparkline([3.0, 3.0], low=3.0, high=3.0) == "▁▁"


HALF = Estimate(value=0.5, low=0.25, high=0.75, num_units=8)


@pytest.mark.parametrize(
    ("style", "text", "interval"),
    [
        ("share", "50.0 %", "[25.0 %, 75.0 %]"),
        ("gap", "+0.500", "[+0.250, +0.750]"),
        ("rank", "0.50", "[0.25, 0.75]"),
        ("norm", "0.5", "[0.25, 0.75]"),
    ],
)
def test_a_number_is_said_by_its_kind(style: NumberStyle, text: str, interval: str) -> None:
    number = KeyNumber(name="n", title="t", value=HALF, style=style)
    assert key_number_words(number) == [(text, interval)]
    assert key_number_words(replace(number, value=Estimate.exact(0.5))) == [(text, "")]
    assert key_number_words(replace(number, value=Estimate.undefined_because("why"))) == [("—", "")]


def test_of_two_numbers_each_has_its_interval() -> None:
    pair = KeyNumber(name="n", title="t", value=HALF, then=HALF.map(lambda share: 1 - share / 2), style="share")
    assert key_number_words(pair) == [("50.0 %", "[25.0 %, 75.0 %]"), ("75.0 %", "[62.5 %, 87.5 %]")]

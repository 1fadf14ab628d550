from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.render.words.key_numbers import key_number_words
from gradscope.results.report import KeyNumber, NumberStyle

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

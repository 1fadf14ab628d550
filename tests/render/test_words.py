import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.color import Color, ColorSystem

from gradscope.errors import UsageError
from gradscope.estimate import Estimate
from gradscope.render import words
from gradscope.render.words import cell
from gradscope.results.report import KeyNumber, NumberStyle
from gradscope.results.verdicts import Change
from tests.render.examples import HOSTILE, check_report, comparison
from tests.render.printing import contrast


@given(st.text(), st.integers(1, 30))
def test_plain_text_is_visible_on_one_line_and_within_its_limit(text: str, limit: int) -> None:
    safe = words.plain(text)
    assert not {unicodedata.category(character) for character in safe} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(safe.splitlines()) <= 1
    assert len(words.plain(text, limit=limit)) <= limit


def test_ordinary_text_of_any_script_stays_and_escapes_name_their_character() -> None:
    assert words.plain("naïve 提示 ½ [x] <y>") == "naïve 提示 ½ [x] <y>"
    assert words.plain("\x1b\n\u202e\U000e0041") == r"\x1b\x0a\u202e\U000e0041"


def test_a_cell_does_not_read_markup() -> None:
    assert cell(HOSTILE).plain == r"<script>[red]\x1b[31mred\u202egnp"
    assert cell("[bold]x[/bold]").spans == []


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
        (-0.0, "norm", "0"),
        (-0.4, "count", "0"),
        (-0.001, "rank", "-0.00"),  # an interval's end says on which side of zero it is
    ],
)
def test_each_kind_of_number_has_its_digits(value: float, style: words.Style, text: str) -> None:
    assert words.format_number(value, style) == text


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
def test_an_interval_follows_its_value(estimate: Estimate, style: words.Style, text: str) -> None:
    assert words.format_estimate(estimate, words.Footnotes(), style) == text
    assert words.format_estimate(estimate, words.Footnotes(), style, interval=False) == text.partition(" ")[0]


def test_an_undefined_number_is_a_dash_with_its_reason_said_once() -> None:
    notes = words.Footnotes()
    marks = [
        words.format_estimate(Estimate.undefined_because(why), notes, "share")
        for why in ("no samples", "k > n", "no samples")
    ]
    assert marks == ["—¹", "—²", "—¹"]
    assert notes.lines() == ("¹ no samples", "² k > n")


def test_remarks_stand_behind_the_footnotes_and_have_no_number() -> None:
    notes = words.Footnotes()
    notes.remark("3 more rows are in the CSV")
    assert notes.number("why") == "¹"
    assert [notes.number(f"{index}") for index in range(11)][-1] == "¹²"
    assert (notes.lines()[0], notes.lines()[-1]) == ("¹ why", "3 more rows are in the CSV")


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
    assert words.key_number_words(number) == [(text, interval)]
    assert words.key_number_words(replace(number, value=Estimate.exact(0.5))) == [(text, "")]
    assert words.key_number_words(replace(number, value=Estimate.undefined_because("why"))) == [("—", "")]


def test_of_two_numbers_each_has_its_interval() -> None:
    pair = KeyNumber(name="n", title="t", value=HALF, then=HALF.map(lambda share: 1 - share / 2), style="share")
    assert words.key_number_words(pair) == [("50.0 %", "[25.0 %, 75.0 %]"), ("75.0 %", "[62.5 %, 87.5 %]")]


def test_a_pair_is_called_by_what_differs() -> None:
    report = comparison()
    by_rate, by_form = report.pairs[0], report.pairs[2]
    assert words.pair_label(by_rate, report) == "learning_rate 0.0002 - 0.0001\n  at grpo"
    assert words.pair_label(by_form, report).endswith("\n  at learning_rate 0.0001")
    several = replace(by_rate, changed="advantage, learning_rate")
    assert words.pair_label(several, report) == f"{several.second} -\n  {several.first}"
    for label in (words.pair_label(pair, report) for pair in report.pairs):
        assert "\x1b" not in label
        assert len(label.splitlines()) == 2
        assert max(map(len, label.splitlines())) <= 45


def test_logs_that_tell_no_setting_are_called_by_their_names() -> None:
    report = comparison()
    first, second, *_ = report.cells
    cells = tuple(replace(cell, settings={}, runs=(name,)) for cell, name in ((first, "a/run"), (second, "b/run")))
    pair = replace(report.pairs[0], first=first.name, second=second.name, changed="run")
    assert words.pair_label(pair, replace(report, cells=cells)) == "b/run - a/run"


def test_a_budget_is_its_own_title() -> None:
    titles = {"pass@16": "pass@16", "pass^2": "pass^2", "p_holm": "p corrected"}
    assert {name: words.metric_title(name) for name in titles} == titles
    with pytest.raises(UsageError, match="There is no metric 'xyzzy'"):
        words.metric_title("xyzzy")


VERDICT = check_report().verdicts[0]


@pytest.mark.parametrize(("limit", "text"), [(0.3, "0.3"), (1e-05, "1e-05"), (2.0, "2")])
def test_a_limit_reads_as_it_was_typed_and_a_baseline_has_none(limit: float, text: str) -> None:
    assert words.condition(replace(VERDICT, limit=limit)) == f"frac_reward_zero_std <= {text}"
    change = Change(baseline=HALF, change=HALF, margin=0.0, rule="interval", num_paired=0)
    assert words.condition(replace(VERDICT, change=change)) == "frac_reward_zero_std against the baseline"


BACKGROUNDS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "dark gray": (30, 30, 30),
    "solarized light": (253, 246, 227),
    "solarized dark": (0, 43, 54),
}


@pytest.mark.parametrize("background", BACKGROUNDS.values(), ids=BACKGROUNDS)
@pytest.mark.parametrize("style", [*filter(None, words.STYLES.values()), words.QUIET])
def test_every_color_reads_on_light_and_on_dark(style: str, background: tuple[int, ...]) -> None:
    assert contrast(Color.parse(style).get_truecolor(), background) >= 3.0


@pytest.mark.parametrize("system", [ColorSystem.EIGHT_BIT, ColorSystem.STANDARD])
def test_no_two_tones_look_alike_even_with_sixteen_colors(system: ColorSystem) -> None:
    shown = [
        Color.parse(style).downgrade(system).number for style in (*filter(None, words.STYLES.values()), words.QUIET)
    ]
    assert all(first != other for first, other in itertools.combinations(shown, 2))

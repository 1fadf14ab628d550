import pytest

from gradscope.estimate import Estimate
from gradscope.render.terminal.layout import draw_table, sparkline
from gradscope.render.views.view import Column, Sparkline
from gradscope.render.words import IN_THE_FILES, Footnotes
from tests.render.printing import printed


def test_a_sparkline_shows_the_scale_that_it_was_given() -> None:
    assert sparkline([0.0, 0.49, 1.0, 2.0, -1.0], low=0.0, high=1.0) == "▁▄██▁"


def test_a_long_series_is_averaged_and_a_gap_stays_a_gap() -> None:
    values = [0.0] * 50 + [None] * 50 + [1.0] * 100
    assert sparkline(values, low=0.0, high=1.0, width=4) == "▁·██"


def test_a_scale_without_length_draws_the_lowest_bar() -> None:
    assert sparkline([1.0, 5.0], low=1.0, high=1.0) == "▁▁"


def test_what_is_not_finite_is_marked_even_among_many() -> None:
    values = [1.0] * 9 + [float("nan")] + [1.0] * 10 + [float("inf"), None]
    assert sparkline(values, low=0.0, high=1.0, width=2) == "!!"
    assert sparkline(values[-3:], low=0.0, high=1.0) == "█!·"


def test_a_table_that_is_not_shown_is_not_drawn() -> None:
    assert draw_table((Column("text", lambda row: row[0]),), [()], Footnotes(is_shown=False)).row_count == 0


@pytest.mark.parametrize("width", [80, 100])
def test_a_wide_terminal_gets_intervals_courses_and_full_texts(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    notes, is_wide = Footnotes(), width == 100
    columns = (
        Column("text", lambda row: "a long prompt", limit=8),
        Column("number", lambda row: Estimate(value=0.5, low=0.4, high=0.6), "rank"),
        Column("steps", lambda row: "7", "count"),
        Column("course", lambda row: Sparkline((0.0, 1.0) * 20, width=20)),
    )
    text = printed(draw_table(columns, [()], notes), width)
    assert [part in text for part in ("a long prompt", "[0.40, 0.60]", "▁█" * 20)] == [is_wide] * 3
    assert "    7 " in text
    assert notes.lines() == (() if is_wide else (IN_THE_FILES,))


@pytest.mark.parametrize("width", [20, 30, 40, 48, 60, 80])
def test_a_narrow_terminal_cuts_no_number(width: int) -> None:
    """At 60 columns -7.26e-05 was "-7.26…", the second end of an interval was cut, and so was k = 16."""
    columns = (
        Column("", lambda row: "gradient norm"),
        Column("share of groups", lambda row: Estimate(value=0.5, low=0.25, high=0.75), "share", ""),
        Column("steps 1 to 40", lambda row: Sparkline((0.5,) * 40, width=26)),
        Column("last", lambda row: "-7.26e-05", "count"),
        Column("k", lambda row: "16", "count"),
    )
    text = printed(draw_table(columns, [()], Footnotes()), width)
    assert max(map(len, text.split("\n"))) <= width
    assert "…" not in text
    assert ({"0.500", "[0.25,", "0.75]", "-7.26e-05", "16"} <= set(text.split())) == (width > 20)  # below words break
    assert text.count("▅") == {48: 8, 60: 10, 80: 26}.get(width, 0)

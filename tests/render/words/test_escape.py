from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.render.words.escape import cell, plain
from tests.render.examples import HOSTILE


@given(st.text())
@settings(deadline=None)
def test_what_is_left_is_visible_and_on_one_line(text: str) -> None:
    safe = plain(text)
    assert not {unicodedata.category(character) for character in safe} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(safe.splitlines()) <= 1


@given(st.text(), st.integers(1, 30))
@settings(deadline=None)
def test_a_limit_is_kept(text: str, limit: int) -> None:
    assert len(plain(text, limit=limit)) <= limit


def test_ordinary_text_of_any_script_stays() -> None:
    assert plain("naïve 提示 ½ [x] <y>") == "naïve 提示 ½ [x] <y>"


def test_escapes_say_which_character_it_was() -> None:
    assert plain("\x1b\n\u202e\U000e0041") == r"\x1b\x0a\u202e\U000e0041"


def test_a_cell_does_not_read_markup() -> None:
    assert cell(HOSTILE).plain == r"<script>[red]\x1b[31mred\u202egnp"
    assert cell("[bold]x[/bold]").spans == []

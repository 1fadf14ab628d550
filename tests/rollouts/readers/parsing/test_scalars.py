from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.rollouts.readers.parsing.scalars import (
    ABSENT,
    digest,
    finite_or_none,
    parse_messages,
    parse_reward,
    text_of,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (Decimal("0.5"), 0.5),
        (ABSENT, "the reward is missing"),
        (None, "the reward is null"),
        (float("nan"), "the reward is not finite"),
        (float("-inf"), "the reward is not finite"),
        (10**400, "the reward is not finite"),
        ("1.0", "the reward is text"),
        ("", "the reward is text"),
        ({}, "the reward is a dict, not a number"),
    ],
)
def test_a_reward_is_a_finite_number_or_says_why_not(value: Any, expected: float | str) -> None:
    assert parse_reward(value) == expected
    assert finite_or_none(value) == (None if isinstance(expected, str) else expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1.0),
        (" -0.5 ", -0.5),
        ("True", 1.0),
        ("false", 0.0),
        ("", "the reward is null"),
        ("nan", "the reward is not finite"),
        ("ok", "the reward is text"),
    ],
)
def test_where_all_is_text_text_is_read(value: str, expected: float | str) -> None:
    assert parse_reward(value, from_text=True) == expected


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_cell_has_a_text_and_a_verdict(value: Any) -> None:
    assert isinstance(text_of(value), str)
    assert isinstance(parse_reward(value), (float, str))
    assert len(digest(value)) == 16


def test_messages_lose_the_keys_that_arrow_added() -> None:
    call = {"id": "1", "index": None}
    cell = [
        {"role": "user", "content": "q", "name": None},
        {"role": "assistant", "tool_calls": [call], "content": None},
    ]
    assert parse_messages(cell) == (
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
    )
    assert text_of(cell) == "q\n"


@pytest.mark.parametrize("cell", ["text", [], None, [1], [{"content": "no role"}]])
def test_other_cells_are_no_messages(cell: Any) -> None:
    assert parse_messages(cell) is None


def test_the_text_of_content_parts() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of([{"role": "user", "content": parts}]) == "a\nb"

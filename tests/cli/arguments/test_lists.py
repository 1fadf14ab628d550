from __future__ import annotations

import pytest

from gradscope.cli.arguments.lists import parse_names, parse_numbers, parse_seeds
from gradscope.errors import UsageError


def test_nothing_is_nothing() -> None:
    assert parse_names(None) == parse_numbers("x", None) == parse_seeds(None) == ()


def test_one_and_several() -> None:
    assert parse_names("grpo") == ("grpo",)
    assert parse_numbers("learning_rate", "1e-4, 3") == (1e-4, 3.0)
    assert parse_seeds("3") == (3,)
    assert parse_seeds("0-2,5,7-7") == (0, 1, 2, 5, 7)


@pytest.mark.parametrize("text", ["", "grpo,", ",grpo", "a,,b"])
def test_empty_names(text: str) -> None:
    with pytest.raises(UsageError, match="names nothing between two commas"):
        parse_names(text)


@pytest.mark.parametrize("text", ["", "fast", "1e-4,", "1e-4;2e-4"])
def test_bad_numbers(text: str) -> None:
    with pytest.raises(UsageError, match=r"learning_rate is .*, which is no number or list of numbers") as caught:
        parse_numbers("learning_rate", text)
    assert caught.value.hint == "Write --learning-rate 1e-4,2e-4"


@pytest.mark.parametrize("text", ["", "a", "4-0", "0-", "-3", "1.5", "0--2"])
def test_bad_seeds(text: str) -> None:
    with pytest.raises(UsageError, match="are no seeds"):
        parse_seeds(text)

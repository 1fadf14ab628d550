from __future__ import annotations

import pytest

from gradscope.cli.arguments.steps import parse_steps
from gradscope.errors import UsageError


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (None, None),
        ([], None),
        (["3", "all"], None),
        (["3,all"], None),
        (["7"], (7,)),
        (["4:6", "5", "1"], (1, 4, 5, 6)),
        (["4-6,5,1"], (1, 4, 5, 6)),
    ],
)
def test_steps_are_named_by_number_list_range_or_all(words: list[str] | None, steps: tuple[int, ...] | None) -> None:
    assert parse_steps(words) == steps


@pytest.mark.parametrize("word", ["x", "1:", "-3", "1.5", "1:2:3", "6:5", "0:99999999"])
def test_what_is_no_step_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--step"):
        parse_steps([word])

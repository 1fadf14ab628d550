from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.parsing.nested_cells import (
    LARGEST_STEP,
    generation_seconds,
    list_of,
    mapping_of,
    number_in_name,
    numbers_in,
    required_whole,
    usable_reward,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError


@pytest.mark.parametrize("cell", [None, "text", 3, ("a",), {1, 2}])
def test_other_cells_are_nothing(cell: Any) -> None:
    assert mapping_of(cell) == {}
    assert list_of(cell) == []
    assert numbers_in(cell) == {}


def test_cells_of_the_right_kind_are_themselves() -> None:
    assert mapping_of({"a": 1}) == {"a": 1}
    assert list_of([1, None]) == [1, None]


def test_numbers_that_are_not_finite_are_known_to_be_missing() -> None:
    cells = {"a": 1, "b": True, "c": float("nan"), "d": float("inf"), "e": "2", "f": None, "g": [1]}
    assert numbers_in(cells) == {"a": 1.0, "b": 1.0, "c": None, "d": None}


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (7, 7),
        (7.0, 7),
        ("7", 7),
        (" 7.0 ", 7),
        (-3, None),
        (LARGEST_STEP, 1 << 53),
        (LARGEST_STEP * 2, None),
        (7.5, None),
        ("seven", None),
        (True, None),
        (None, None),
        ([7], None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_a_whole_number_or_nothing(cell: Any, number: int | None) -> None:
    assert whole_number(cell) == number
    if number is None:
        with pytest.raises(UnusableRowError, match=r"^the step is not a whole number$"):
            required_whole(cell, "the step")
    else:
        assert required_whole(cell, "the step") == number


def test_the_last_part_of_the_path_that_has_a_number_tells_it() -> None:
    step = re.compile(r"^step_(\d+)$")
    assert number_in_name(step, Path("step_1/old/step_12/rank_0.jsonl")) == 12
    assert number_in_name(step, Path("step_x/rank_0.jsonl")) is None


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ({"generation_seconds": 2}, 2.0),
        ({"timing": {"llm_time": 0.5}}, 0.5),
        ({"timing": {"generation_ms": 250.0}}, 0.25),
        ({"generation_seconds": None, "timing": {"llm_time": -1.0, "generation_ms": 0}}, 0.0),
        ({"generation_seconds": "2", "timing": 3}, None),
        ({}, None),
    ],
)
def test_time_is_in_seconds_whoever_logged_it(row: dict[str, Any], seconds: float | None) -> None:
    assert generation_seconds(row) == seconds


def test_a_row_without_a_reward_is_set_aside_with_its_location() -> None:
    quarantine = QuarantineLog()
    assert usable_reward(0.5, "log:1", quarantine) == 0.5
    assert usable_reward("high", "log:2", quarantine) is None
    (reason,) = quarantine.result().reasons
    assert (reason.reason, reason.num_rows, reason.first) == ("the reward is text", 1, "log:2")

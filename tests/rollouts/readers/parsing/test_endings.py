import math
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.parsing.endings import are_cut_off, end_column, status_in


@pytest.mark.parametrize(
    ("name", "cell", "status"),
    [
        ("finish_reason", "stop", "completed"),
        ("finish_reason", "FinishReason.LENGTH", "truncated"),
        ("finish_reason", "true", "unknown"),
        ("finish_reason", {"type": "length", "length": 5}, "truncated"),
        ("finish_reason", {"matched": "stop"}, "unknown"),
        ("stop_reason", 2, "unknown"),
        ("stop_reason", None, "unknown"),
        ("status", "ABORTED", "error"),
        ("status", "Status.SUCCEEDED", "completed"),
        ("is_truncated", True, "truncated"),
        ("is_truncated", "0.0", "completed"),
        ("truncated", "2.0", "unknown"),
        ("truncated", "length", "truncated"),
    ],
)
def test_a_word_or_a_flag_says_how_a_completion_ended(name: str, cell: Any, status: str) -> None:
    assert status_in(cell, name) == status


def test_what_failed_or_says_nothing_is_not_known_to_be_cut_off() -> None:
    ends = are_cut_off(["length", {"type": "stop"}, "abort", None, "length"], "finish_reason")
    np.testing.assert_array_equal(ends, [1.0, 0.0, math.nan, math.nan, 1.0])


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"truncated": [0], "finish_reason": ["stop"]}, "finish_reason"),
        ({"a.is_truncated": [True]}, "a.is_truncated"),
        ({"status": ["completed", None, "truncated", "aborted"]}, "status"),
        ({"status": ["completed", "failed"]}, None),  # as calls and tests do
        ({"status": ["truncated", "passed"]}, None),
        ({"a.status": ["truncated"], "status": ["ok"]}, "a.status"),
        ({}, None),
    ],
)
def test_a_status_counts_where_it_says_of_all_completions_how_they_ended(
    columns: dict[str, list[Any]], name: str | None
) -> None:
    assert end_column(columns, columns.__getitem__) == name

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gradscope.rollouts.readers.parsing.grouping import build_groups
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.reduction.columns import NOT_COMPARED
from gradscope.rollouts.readers.reduction.parts import (
    grouped,
    part_of_records,
    part_of_rows,
    repeated_samples,
    replaced_groups,
)
from tests.rollouts.readers.reduction.made_up_parts import record, table_of


def test_rows_become_groups_in_the_order_of_their_first_rows() -> None:
    rewards = np.arange(5.0)
    part, rows = part_of_rows(
        np.array([2, 1, 2, 1, 1]),
        pa.array(["a", "a", "a", "b", "a"]),
        {"reward": rewards, "reward/reward": rewards},
        np.array([10, 11, 13, 14, 20]),
    )
    assert rows.tolist() == [0, 2, 1, 4, 3]
    assert (part.step.tolist(), part.group.to_pylist()) == ([2, 1, 1], ["a", "a", "b"])
    assert (part.place.tolist(), part.size.tolist()) == ([10, 11, 14], [2, 2, 1])
    assert part.columns["reward"].tolist() == [0.0, 2.0, 1.0, 4.0, 3.0]
    assert part.columns["reward/reward"] is part.columns["reward"]


def test_records_become_groups_with_all_of_their_columns() -> None:
    records = [record(reward=None), record(group="b", format=0.5, seconds=2.0, length=3), record()]
    part = part_of_records(list(zip([4, 5, 9], records, strict=True)))
    assert (part.place.tolist(), part.prompt) == ([4, 5], ["p", "p"])
    assert part.size.tolist() == [2, 1]
    np.testing.assert_array_equal(part.columns["reward"], [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(part.columns["reward/format"], [math.nan, math.nan, 0.5])
    np.testing.assert_array_equal(part.columns["seconds"], [math.nan, math.nan, 2.0])
    assert part.columns["num_tokens"].tolist() == [-1, -1, 3]
    assert "sample" not in part.columns


def test_records_stand_where_they_were_between_usual_rows() -> None:
    usual, rows = part_of_rows(
        np.array([1, 1, 1]), pa.array(["a", "b", "a"]), {"reward": np.array([0.0, 1.0, 2.0])}, np.array([0, 2, 4])
    )
    usual = replace(usual, prompt=["p", "q"])
    odd = [(1, record(reward=0.5, prompt="late")), (3, record(group="c", reward=None, prompt="r"))]
    part = part_of_records(odd, usual, np.array([0, 2, 4])[rows])
    assert (part.group.to_pylist(), part.prompt, part.place.tolist()) == (["a", "b", "c"], ["p", "q", "r"], [0, 2, 3])
    np.testing.assert_array_equal(part.columns["reward"], [0.0, 0.5, 2.0, 1.0, math.nan])
    np.testing.assert_array_equal(part.columns["reward/reward"], [math.nan, 0.5, math.nan, math.nan, math.nan])


def test_groups_of_the_row_reader_take_their_places() -> None:
    records = [record(group=name, reward=at / 10) for at, name in enumerate("aabbcc")]
    table = table_of(records)
    made = build_groups([record(group="b", reward=7.0, prompt="new", format=0.25, length=4)], QuarantineLog())
    replaced = replaced_groups(table, np.array([False, True, False]), made)
    assert replaced.ids() == table.ids()
    assert replaced.size.tolist() == [2, 1, 2]
    assert replaced.reward.tolist() == [0.0, 0.1, 7.0, 0.4, 0.5]
    assert [replaced.prompts[at] for at in replaced.prompt] == ["p", "new", "p"]
    np.testing.assert_array_equal(replaced.rewards["format"], [*[math.nan] * 2, 0.25, *[math.nan] * 2])
    assert replaced.seconds is None


def test_lengths_that_only_the_row_reader_knows_are_kept() -> None:
    records = [record(length=2), record(group="b")]
    table = table_of(records)
    replaced = replaced_groups(table, np.array([False, True]), build_groups([record(group="b")], QuarantineLog()))
    assert replaced.num_tokens is not None
    assert replaced.num_tokens.tolist() == [2, -1]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 1, 2], [False, False]),
        ([1, 2, 2, 1, 2], [True, False]),
        ([2, 1, 2, 5, 5], [True, True]),
        ([1, 2, 3, NOT_COMPARED, 2], [False, True]),
    ],
)
def test_groups_in_which_a_sample_may_return(ids: list[int], expected: list[bool]) -> None:
    table = table_of([record(group=name) for name in "aaabb"])
    assert repeated_samples(table, np.array(ids, dtype=np.uint32)).tolist() == expected


def test_rows_of_no_group_are_none() -> None:
    order, size = grouped(np.zeros(0, dtype=np.int64), pa.array([], pa.string()))
    assert (order.tolist(), size.tolist()) == ([], [])

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.parsing.grouping import Record, build_groups
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.token_lists import Tokens
from gradscope.rollouts.readers.scan.parts import (
    NOT_COMPARED,
    Part,
    grouped,
    part_of_records,
    part_of_rows,
    repeated_samples,
    replaced_groups,
    whole_of_parts,
)
from gradscope.rollouts.reward_table import RewardTable

COLUMNS = ("reward", "reward/reward", "reward/format", "num_tokens", "seconds", "sample")


def record(step: int = 1, group: str = "a", reward: float | None = 1.0, prompt: str = "p", **further: float) -> Record:
    length = int(further.pop("length", 0))
    tokens = Tokens(prompt_ids=(), completion_ids=(1,) * length, mask=(True,) * length) if length else None
    return Record(
        step=step,
        group=group,
        prompt_id=prompt,
        prompt="",
        completion="",
        reward=reward,
        rewards={"reward": reward, **{name: value for name, value in further.items() if name != "seconds"}},
        seconds=further.get("seconds"),
        tokens=tokens,
    )


def test_rows_become_groups_in_the_order_of_their_first_rows() -> None:
    rewards = np.arange(5.0)
    part, first = part_of_rows(
        np.array([2, 1, 2, 1, 1]),
        pa.array(["a", "a", "a", "b", "a"]),
        {"reward": rewards, "reward/reward": rewards},
        np.array([10, 11, 13, 14, 20]),
    )
    assert first.tolist() == [0, 1, 3]
    assert (part.step.tolist(), part.group.to_pylist()) == ([2, 1, 1], ["a", "a", "b"])
    assert (part.place.tolist(), part.size.tolist()) == ([10, 11, 14], [2, 2, 1])
    assert part.columns["reward"].tolist() == [0.0, 2.0, 1.0, 4.0, 3.0]
    assert part.columns["reward/reward"] is part.columns["reward"]


def test_records_become_groups_with_all_of_their_columns() -> None:
    records = [record(reward=None), record(group="b", format=0.5, seconds=2.0, length=3), record()]
    part = part_of_records(list(zip([4, 5, 9], records, strict=True)), COLUMNS)
    assert part.by_row
    assert (part.place.tolist(), [part.prompts[at] for at in part.prompt]) == ([4, 5], ["p", "p"])
    assert part.size.tolist() == [2, 1]
    np.testing.assert_array_equal(part.columns["reward"], [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(part.columns["reward/format"], [math.nan, math.nan, 0.5])
    np.testing.assert_array_equal(part.columns["seconds"], [math.nan, math.nan, 2.0])
    assert part.columns["num_tokens"].tolist() == [-1, -1, 3]
    assert part.columns["sample"].dtype == np.uint32
    assert part.columns["sample"].tolist() == [NOT_COMPARED] * 3


ROWS = st.lists(
    st.builds(
        record,
        step=st.integers(0, 2),
        group=st.sampled_from("abc"),
        reward=st.sampled_from([0.0, 1.0, None]),
        prompt=st.sampled_from("pq"),
        format=st.sampled_from([0.0, 0.5]),
        length=st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


def parts_of(records: Sequence[Record], cuts: Sequence[int]) -> list[Part]:
    numbered = list(enumerate(records))
    ends = sorted({*(cut for cut in cuts if 0 < cut < len(records)), len(records)})
    return [part_of_records(numbered[start:end], COLUMNS) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def assert_equal_tables(one: RewardTable, other: RewardTable) -> None:
    assert (one.ids(), one.prompts) == (other.ids(), other.prompts)
    for name in ("step", "prompt", "size", "reward", "num_tokens", "seconds"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None), name
        assert first is None or first.tobytes() == second.tobytes(), name
    assert {name: values.tobytes() for name, values in one.rewards.items()} == {
        name: values.tobytes() for name, values in other.rewards.items()
    }


@settings(max_examples=60, deadline=None)
@given(records=ROWS, cuts=st.lists(st.integers(1, 11), max_size=4), random=st.randoms())
def test_the_whole_is_the_same_however_the_log_was_cut_and_is_what_the_row_reader_makes(
    records: list[Record], cuts: list[int], random: st.randoms
) -> None:
    parts = parts_of(records, cuts)
    random.shuffle(parts)
    table, _ = whole_of_parts(parts, COLUMNS)
    whole, sample = whole_of_parts(parts_of(records, ()), COLUMNS)
    assert_equal_tables(table, whole)
    assert sample is not None
    assert sample.tolist() == [NOT_COMPARED] * len(records)
    groups = build_groups(records, QuarantineLog())
    by_row = RewardTable.of_groups(groups)
    assert table.ids() == by_row.ids()
    assert [table.prompts[at] for at in table.prompt] == [group.prompt_id for group in groups]
    np.testing.assert_array_equal(table.reward, by_row.reward)
    np.testing.assert_array_equal(table.rewards["format"], by_row.rewards["format"])
    np.testing.assert_array_equal(table.num_tokens, by_row.num_tokens)


def test_what_the_row_reader_read_stands_last_and_a_part_may_lack_a_column() -> None:
    rewards = np.array([0.0, 1.0])
    plain, _ = part_of_rows(np.array([1, 1]), pa.array(["a", "a"]), {"reward": rewards}, np.array([5, 6]))
    plain = replace(plain, prompts=("p",))
    odd = part_of_records([(0, record(reward=0.5, prompt="q", length=2, seconds=1.0))], COLUMNS)
    table, sample = whole_of_parts([odd, plain], COLUMNS)
    assert table.reward.tolist() == [0.0, 1.0, 0.5]
    assert [table.prompts[at] for at in table.prompt] == ["q"]
    assert table.num_tokens is not None
    assert table.num_tokens.tolist() == [-1, -1, 2]
    np.testing.assert_array_equal(table.seconds, [math.nan, math.nan, 1.0])
    assert sample is not None
    assert sample.tolist() == [NOT_COMPARED] * 3
    assert whole_of_parts([plain], ("reward",))[1] is None


def test_columns_that_are_one_array_stay_one() -> None:
    rewards = np.array([0.0, 1.0, 0.5])
    columns = {"reward": rewards, "reward/reward": rewards}
    part, _ = part_of_rows(np.array([2, 1, 2]), pa.array(["a", "a", "a"]), columns, np.arange(3))
    part = replace(part, prompts=("p",))
    table, _ = whole_of_parts([part], columns)
    assert table.rewards["reward"] is table.reward
    assert table.reward.tolist() == [1.0, 0.0, 0.5]


def test_groups_of_the_row_reader_take_their_places() -> None:
    records = [record(group=name, reward=at / 10) for at, name in enumerate("aabbcc")]
    table, _ = whole_of_parts(parts_of(records, ()), COLUMNS)
    made = build_groups([record(group="b", reward=7.0, prompt="new", format=0.25, length=4)], QuarantineLog())
    replaced = replaced_groups(table, np.array([False, True, False]), made)
    assert replaced.ids() == table.ids()
    assert replaced.size.tolist() == [2, 1, 2]
    assert replaced.reward.tolist() == [0.0, 0.1, 7.0, 0.4, 0.5]
    assert [replaced.prompts[at] for at in replaced.prompt] == ["p", "new", "p"]
    np.testing.assert_array_equal(replaced.rewards["format"], [*[math.nan] * 2, 0.25, *[math.nan] * 2])
    np.testing.assert_array_equal(replaced.seconds, [math.nan] * 5)


def test_lengths_that_only_the_row_reader_knows_are_kept() -> None:
    records = [record(length=2), record(group="b")]
    table, _ = whole_of_parts(parts_of(records, ()), COLUMNS)
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
    table, _ = whole_of_parts(parts_of([record(group=name) for name in "aaabb"], ()), COLUMNS)
    assert repeated_samples(table, np.array(ids, dtype=np.uint32)).tolist() == expected


def test_rows_of_no_group_are_none() -> None:
    order, size = grouped(np.zeros(0, dtype=np.int64), pa.array([], pa.string()))
    assert (order.tolist(), size.tolist()) == ([], [])

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gradscope.rollouts.arrays import to_strings
from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.readers.parsing.cells import Tokens
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import Record, build_groups
from gradscope.rollouts.readers.reduction import parts
from gradscope.rollouts.readers.reduction.parts import (
    NOT_COMPARED,
    Part,
    grouped,
    merge_parts,
    part_of_records,
    part_of_rows,
    repeated_samples,
    replaced_groups,
    sample_hashes,
)


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


def parts_of(records: Sequence[Record], cuts: Sequence[int]) -> list[Part]:
    numbered = list(enumerate(records))
    ends = sorted({*(cut for cut in cuts if 0 < cut < len(records)), len(records)})
    return [part_of_records(numbered[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def table_of(records: Sequence[Record]) -> RewardTable:
    return merge_parts(parts_of(records, ()))


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
    assert (part.first_row.tolist(), part.size.tolist()) == ([10, 11, 14], [2, 2, 1])
    assert part.columns["reward"].tolist() == [0.0, 2.0, 1.0, 4.0, 3.0]
    assert part.columns["reward/reward"] is part.columns["reward"]


def test_records_become_groups_with_all_of_their_columns() -> None:
    records = [record(reward=None), record(group="b", format=0.5, seconds=2.0, length=3), record()]
    part = part_of_records(list(zip([4, 5, 9], records, strict=True)))
    assert (part.first_row.tolist(), part.prompt.to_pylist()) == ([4, 5], ["p", "p"])
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
    usual = replace(usual, prompt=to_strings(["p", "q"]))
    odd = [(1, record(reward=0.5, prompt="late")), (3, record(group="c", reward=None, prompt="r"))]
    part = part_of_records(odd, usual, np.array([0, 2, 4])[rows])
    assert part.first_row.tolist() == [0, 2, 3]
    assert (part.group.to_pylist(), part.prompt.to_pylist()) == (["a", "b", "c"], ["p", "q", "r"])
    np.testing.assert_array_equal(part.columns["reward"], [0.0, 0.5, 2.0, 1.0, math.nan])
    np.testing.assert_array_equal(part.columns["reward/reward"], [math.nan, 0.5, math.nan, math.nan, math.nan])


def test_groups_of_the_row_reader_take_their_places() -> None:
    records = [record(group=name, reward=index / 10) for index, name in enumerate("aabbcc")]
    table = table_of(records)
    made = build_groups([record(group="b", reward=7.0, prompt="new", format=0.25, length=4)], QuarantineLog())
    replaced = replaced_groups(table, np.array([False, True, False]), made)
    assert replaced.ids() == table.ids()
    assert replaced.size.tolist() == [2, 1, 2]
    assert replaced.reward.tolist() == [0.0, 0.1, 7.0, 0.4, 0.5]
    assert [replaced.prompts[index] for index in replaced.prompt] == ["p", "new", "p"]
    np.testing.assert_array_equal(replaced.rewards["format"], [*[math.nan] * 2, 0.25, *[math.nan] * 2])
    assert replaced.seconds is None


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


def assert_equal_tables(first_table: RewardTable, other: RewardTable) -> None:
    assert (first_table.ids(), first_table.prompts) == (other.ids(), other.prompts)
    for name in ("step", "prompt", "size", "reward", "num_tokens", "seconds"):
        first, second = getattr(first_table, name), getattr(other, name)
        assert (first is None) == (second is None), name
        assert first is None or first.tobytes() == second.tobytes(), name
    assert {name: values.tobytes() for name, values in first_table.rewards.items()} == {
        name: values.tobytes() for name, values in other.rewards.items()
    }


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(records=ROWS, cuts=st.lists(st.integers(1, 11), max_size=4), random=st.randoms())
def test_any_cut_of_the_log_equals_the_row_reader(records: list[Record], cuts: list[int], random: st.randoms) -> None:
    cut = parts_of(records, cuts)
    random.shuffle(cut)
    table = merge_parts(cut)
    assert_equal_tables(table, merge_parts(parts_of(records, ())))
    assert (table.sample, len(merge_parts([]))) == (None, 0)
    groups = build_groups(records, QuarantineLog())
    by_row = RewardTable.from_groups(groups)
    assert table.ids() == by_row.ids()
    assert [table.prompts[index] for index in table.prompt] == [group.prompt_id for group in groups]
    np.testing.assert_array_equal(table.reward, by_row.reward)
    np.testing.assert_array_equal(table.rewards["format"], by_row.rewards["format"])
    np.testing.assert_array_equal(table.num_tokens, by_row.num_tokens)


def test_prompts_are_numbered_alike_with_arrow_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [record(group=str(number), prompt="qap"[number % 3]) for number in range(7)]
    part = part_of_records(list(enumerate(groups)))
    table = merge_parts([part])
    assert (table.prompts, table.prompt.tolist()) == (("q", "a", "p"), [0, 1, 2, 0, 1, 2, 0])
    monkeypatch.setattr(parts, "_WORTH_ARROW", 0)
    assert_equal_tables(merge_parts([part]), table)


def test_a_part_may_lack_a_column_that_another_has() -> None:
    rewards = np.array([0.0, 1.0])
    plain, _ = part_of_rows(np.array([1, 1]), pa.array(["a", "a"]), {"reward": rewards}, np.array([5, 6]))
    plain = replace(plain, prompt=to_strings(["p"]))
    odd = part_of_records([(0, record(reward=0.5, prompt="q", length=2, seconds=1.0))])
    for pair in ([odd, plain], [plain, odd]):
        table = merge_parts(pair)
        assert table.reward.tolist() == [0.5, 0.0, 1.0]
        assert [table.prompts[index] for index in table.prompt] == ["q"]
        assert table.num_tokens is not None
        assert table.num_tokens.tolist() == [2, -1, -1]
        np.testing.assert_array_equal(table.seconds, [1.0, math.nan, math.nan])


@pytest.mark.parametrize("format_reward", [1.0, 0.25])
def test_columns_part_where_the_row_reader_tells_them_apart(format_reward: float) -> None:
    rewards = np.array([0.0, 1.0])
    columns = {"reward": rewards, "reward/reward": rewards, "reward/format": rewards}
    plain, _ = part_of_rows(np.array([1, 1]), pa.array(["a", "a"]), columns, np.array([0, 1]))
    odd = part_of_records([(2, record(format=format_reward))])
    table = merge_parts([replace(plain, prompt=to_strings(["p"])), odd])
    assert table.rewards["reward"] is table.reward
    assert (table.rewards["format"] is table.reward) == (format_reward == 1.0)
    assert table.reward.tolist() == [0.0, 1.0, 1.0]
    assert table.rewards["format"].tolist() == [0.0, 1.0, format_reward]


def test_samples_are_told_apart_by_their_names() -> None:
    hashes = sample_hashes(["a", "b", None, "a", "\ud800"])
    assert sample_hashes(["a"] * 16 + ["b"]).tolist() == [*[hashes[0]] * 16, hashes[1]]  # few names, each hashed once
    assert hashes[0] == hashes[3]
    assert len({*hashes.tolist()}) == 4
    assert hashes[2] == NOT_COMPARED

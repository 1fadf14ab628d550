from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.flat.columns import (
    FlatColumns,
    chosen_name,
    key_of,
    list_names,
    resolve_columns,
    reward_columns,
    sample_column,
    summed_columns,
)
from gradscope.rollouts.readers.parsing.cells import prompt_text_id
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.reduction.columns import records_in


def test_the_most_telling_usual_name_has_the_role() -> None:
    columns = resolve_columns(["score", "reward", "uid", "group_id", "iteration", "input"], ColumnNames())
    assert columns == ColumnNames(prompt="input", reward="reward", step="iteration", group="group_id")


def test_a_given_name_wins_and_must_be_there() -> None:
    assert resolve_columns(["reward", "grade"], ColumnNames(reward="grade")).reward == "grade"
    with pytest.raises(UsageError, match="There is no column 'mark' to take as prompt id") as caught:
        resolve_columns(["reward"], ColumnNames(prompt_id="mark"))
    assert caught.value.hint == "The columns are 'reward'."


def test_who_names_the_prompt_means_to_tell_prompts_apart_by_it() -> None:
    present = ["prompt", "task_id", "uid", "reward"]
    by_prompt = resolve_columns(present, ColumnNames(prompt="prompt"))
    assert (by_prompt.group, by_prompt.prompt_id, by_prompt.prompt) == (None, None, "prompt")
    by_id = resolve_columns(present, ColumnNames(prompt_id="task_id"))
    assert (by_id.group, by_id.prompt_id) == (None, "task_id")


def test_rewards_are_known_by_prefix_suffix_or_usual_name() -> None:
    present = ["mine", "reward/format", "rewards/x", "reward_y", "z_reward", "accuracy", "rewarding", "step"]
    assert reward_columns(present, "mine") == ("mine", "reward/format", "rewards/x", "reward_y", "z_reward", "accuracy")


def test_long_lists_of_names_are_cut_off() -> None:
    assert list_names([]) == "none"
    assert list_names(["a", "b"]) == "'a', 'b'"
    assert list_names(map(str, range(22))).endswith("'19' and 2 more")


def test_the_named_scorer_counts_else_the_first() -> None:
    request = ReadRequest(path=Path("log"))
    named = ReadRequest(path=Path("log"), options=ReadOptions(columns=ColumnNames(reward="f1")))
    assert chosen_name(["acc", "f1", "acc"], request, "metric", "none") == "acc"
    assert chosen_name(["acc", "f1"], named, "metric", "none") == "f1"
    with pytest.raises(InputError, match=r"^log has no metric 'f1'\.$") as caught:
        chosen_name(["acc", "acc"], named, "metric", "none")
    assert caught.value.hint == "Its metrics are 'acc'; name one with --reward-column."
    with pytest.raises(InputError, match=r"^log has no scored samples\.$"):
        chosen_name([], request, "scorer", "no scored samples")


def test_ids_tell_samples_apart_if_more_than_half_of_them_differ() -> None:
    columns = ColumnNames(step="step", group="uid")
    rows = [{"step": 1, "uid": "a", "sample_id": number} for number in (0, 1, 2, 2)]
    assert sample_column(rows, columns) == "sample_id"
    assert sample_column(rows[2:], columns) is None
    assert sample_column([{"step": 1, "uid": "a", "sample_id": None}], columns) is None
    # The same id at another step is another sample.
    again = [{"step": step, "uid": "a", "rollout_idx": 0} for step in (1, 2, 3)]
    assert sample_column(again, columns) == "rollout_idx"


def rows_of(**columns: list[object]) -> list[dict[str, object]]:
    names = list(columns)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_columns_that_add_up_to_the_reward_are_its_functions() -> None:
    correct, length = [1, 0, 1, 1] * 8, [5 + 3 * n % 17 for n in range(32)]
    names = ColumnNames(reward="reward", group="g")
    total = [c - 0.01 * n for c, n in zip(correct, length, strict=True)]
    group = [n // 4 for n in range(32)]
    rows = rows_of(g=group, reward=total, correct=correct, length=length, index=list(range(32)))
    assert summed_columns(rows, names, ["correct", "length", "index"]) == {"correct": 1.0, "length": -0.01}
    text = rows_of(g=group, reward=list(map(str, total)), correct=["true", "false"] * 16, length=list(map(str, length)))
    assert summed_columns(text, names, ["correct", "length"]) == {}


def test_the_mean_of_the_group_and_what_is_above_it_are_no_functions() -> None:
    rewards = [float(n * n % 7) for n in range(32)]
    means = [sum(rewards[n // 4 * 4 : n // 4 * 4 + 4]) / 4 for n in range(32)]
    above = [reward - mean for reward, mean in zip(rewards, means, strict=True)]
    rows = rows_of(g=[n // 4 for n in range(32)], reward=rewards, mean=means, above=above)
    assert summed_columns(rows, ColumnNames(reward="reward", group="g"), ["mean", "above"]) == {}


def columns(sample: str | None = None, times: tuple[str, ...] = (), **names: str) -> FlatColumns:
    named = ColumnNames(reward="reward", **names)
    return FlatColumns(names=named, rewards=("reward", "format"), sample=sample, times=times)


def read(row: dict[str, Any], flat: FlatColumns, *, from_text: bool = False) -> tuple[list[Record], dict[str, int]]:
    quarantine = QuarantineLog()
    found = records_in(flat.take, Path("a"), [("a:1", row)], quarantine, from_text=from_text)
    records = [record for _, record in found]
    return records, {reason.reason: reason.num_rows for reason in quarantine.result().reasons}


USUAL = {"step": "3", "group": "g", "prompt": "2+2?", "text": "4", "reward": 1, "format": 0.5, "advantage": -0.25}
NAMES = {"step": "step", "group": "group", "prompt": "prompt", "completion": "text", "advantage": "advantage"}


def test_a_row_is_a_rollout_with_what_its_columns_hold() -> None:
    (record,), reasons = read(
        USUAL | {"id": 7, "generation_seconds": 2}, columns("id", times=("generation_seconds",), **NAMES)
    )
    assert not reasons
    assert (record.step, record.group, record.prompt, record.completion) == (3, "g", "2+2?", "4")
    assert (record.reward, record.rewards, record.advantage) == (1.0, {"reward": 1.0, "format": 0.5}, -0.25)
    assert (record.prompt_id, record.seconds) == (prompt_text_id("2+2?"), 2.0)
    assert (record.sample_id, record.location) == ("7", "a:1")


@pytest.mark.parametrize(
    ("cells", "reason", "is_kept"),
    [
        ({"step": 1.5}, "the step is not a whole number", False),
        ({"group": None}, "group is missing", False),
        ({"group": ""}, "group is missing", False),
        ({"group": [{"role": "user"}]}, "group is missing", False),
        ({"reward": None}, "the reward is null", True),
        ({"reward": "1"}, "the reward is text", True),
        ({"advantage": float("nan")}, BROKEN_ADVANTAGE, True),
    ],
)
def test_rows_that_cannot_be_used_are_set_aside_and_stay_in_their_groups_where_they_have_one(
    cells: dict[str, Any], reason: str, is_kept: bool
) -> None:
    records, reasons = read(USUAL | cells, columns(**NAMES))
    assert reasons == {reason: 1}
    assert len(records) == is_kept


def test_text_is_a_number_where_all_cells_are_text() -> None:
    (record,), _ = read(USUAL | {"reward": " TRUE ", "format": "x"}, columns(**NAMES), from_text=True)
    assert record.rewards == {"reward": 1.0, "format": None}


@pytest.mark.parametrize(
    ("names", "row", "group", "prompt_id"),
    [
        ({"prompt_id": "p"}, {"p": 5}, "5", "5"),
        ({"prompt": "q"}, {"q": "2+2?"}, prompt_text_id("2+2?"), prompt_text_id("2+2?")),
        ({"group": "g", "prompt_id": "p", "prompt": "q"}, {"g": 1, "p": None, "q": "?"}, "1", prompt_text_id("?")),
        ({"group": "g", "prompt": "q"}, {"g": 1}, "1", "1"),
    ],
)
def test_a_prompt_has_its_own_id_or_that_of_its_text_or_that_of_its_group(
    names: dict[str, str], row: dict[str, Any], group: str, prompt_id: str
) -> None:
    flat = columns(**names)
    (record,), _ = read(row | {"reward": 1}, flat)
    assert (record.group, record.prompt_id, record.step) == (group, prompt_id, 0)
    assert flat.by_prompt == (set(names) == {"prompt"})
    assert flat.key == key_of(flat.names)


def test_equal_messages_are_one_prompt_whatever_arrow_added_to_them() -> None:
    message = {"role": "user", "content": "2+2?"}
    assert prompt_text_id([message]) == prompt_text_id([message | {"name": None}])
    assert prompt_text_id([message]) != prompt_text_id("2+2?")
    assert key_of(ColumnNames()) is None

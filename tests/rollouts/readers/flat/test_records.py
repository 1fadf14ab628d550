from __future__ import annotations

from typing import Any

import pytest

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.records import FlatColumns, flat_records, key_of, prompt_id_of, prompt_text_id
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog


def columns(sample: str | None = None, **names: str) -> FlatColumns:
    return FlatColumns(names=ColumnNames(reward="reward", **names), rewards=("reward", "format"), sample=sample)


def read(row: dict[str, Any], flat: FlatColumns, *, from_text: bool = False) -> tuple[list[Record], dict[str, int]]:
    quarantine = QuarantineLog()
    records = list(flat_records([("a:1", row)], flat, quarantine, from_text=from_text))
    return records, {reason.reason: reason.num_rows for reason in quarantine.result().reasons}


USUAL = {"step": "3", "group": "g", "prompt": "2+2?", "text": "4", "reward": 1, "format": 0.5, "advantage": -0.25}
NAMES = {"step": "step", "group": "group", "prompt": "prompt", "completion": "text", "advantage": "advantage"}


def test_a_row_is_a_rollout_with_what_its_columns_hold() -> None:
    (record,), reasons = read(USUAL | {"id": 7, "generation_seconds": 2}, columns(sample="id", **NAMES))
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
    assert prompt_id_of(row, flat) == prompt_id
    assert flat.by_prompt == (set(names) == {"prompt"})
    assert flat.key == key_of(flat.names)


def test_equal_messages_are_one_prompt_whatever_arrow_added_to_them() -> None:
    message = {"role": "user", "content": "2+2?"}
    assert prompt_text_id([message]) == prompt_text_id([message | {"name": None}])
    assert prompt_text_id([message]) != prompt_text_id("2+2?")
    assert key_of(ColumnNames()) is None

"""TRL's files as arrays have the answers of the row reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE
from gradscope.rollouts.readers.trl.table import NO_REWARD, SHARED_NAME, without_reward
from tests.conftest import REPOSITORY
from tests.rollouts.readers.same_table import assert_reduced_alike
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

MESSAGES = [{"role": "user", "content": "2+2?"}]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_arrays_have_the_answers_of_the_row_reader(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rewards = st.sampled_from([0.0, 1.0, 0.5, None])
    for step in range(1, data.draw(st.integers(1, 3)) + 1):
        prompts = [
            prompt for prompt in data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4)) for _ in "12"
        ]
        cells: dict[str, Any] = {"neat": [data.draw(rewards) for _ in prompts]} if data.draw(st.booleans()) else {}
        content = rows(prompts, [data.draw(rewards) for _ in prompts], **cells)
        for row in content:
            row["right"] = data.draw(st.sampled_from([row["right"]] * 4 + [math.nan, math.inf]))
            row["advantage"] = data.draw(st.sampled_from([row["advantage"]] * 4 + [math.nan]))
        write_file(folder, step, content[: data.draw(st.integers(1, len(content)))])
    if data.draw(st.booleans()):
        write_state(folder, entry(1), {"step": 2, "loss": 0.1})
    reduced = assert_reduced_alike(folder)
    assert isinstance(reduced, str) or reduced.groups.table.prompt_texts is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "columns",
    [
        {"completion_ids": [[1, 2], [3], None, [4]]},
        {"completion_ids": ["text", "text", "text", "text"]},
        {"completion_ids": [[1.5], [2.0], [], [3.0]]},
        {"right": [1, 0, 1, 0]},
        {"right": [True, False, None, True]},
    ],
)
def test_columns_of_other_types(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    path = write_file(tmp_path, 1, rows(["a", "a", "b", "b"], [1, 0, 0, 0]))
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop_columns([name] if name in table.column_names else []).append_column(name, pa.array(values))
    pq.write_table(table, path)
    assert_reduced_alike(tmp_path)


def test_conversations_have_their_ids(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows([MESSAGES, MESSAGES, MESSAGES[:1], [*MESSAGES, *MESSAGES]], [1, 0, 0, 0]))
    assert_reduced_alike(tmp_path)


def test_rows_are_set_aside_with_their_reason(tmp_path: Path) -> None:
    content = rows(["a", "a", "b", "b"], [None, 0, 1, 0])
    content[0]["advantage"] = content[3]["advantage"] = math.nan
    write_file(tmp_path, 1, content)
    assert_reduced_alike(tmp_path)
    found = read_run(tmp_path, rewards_only=True).source.quarantined.reasons
    assert {(one.reason, one.num_rows) for one in found} == {(NO_REWARD, 1), (BROKEN_ADVANTAGE, 1)}


def test_the_sample_of_the_format() -> None:
    assert_reduced_alike(REPOSITORY / "fixtures" / "logs" / "trl")


def test_why_a_row_has_no_reward() -> None:
    assert without_reward({"a": 1.0, "b": 0.5}) == NO_REWARD
    assert without_reward({"a": float("nan")}) == SHARED_NAME

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import GradscopeError, InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shape(run: Run) -> dict[str, tuple[float | None, ...]]:
    return {group.group_id: group.rewards for group in run.groups}


def test_rows_of_a_group_may_be_anywhere(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        *({"step": s, "uid": u, "task_id": "t", "prompt": "p", "response": "r", "score": r, "advantage": 0.5}
          for s, u, r in ((2, "x", 1), (1, "x", 0), (2, "y", 0), (2, "x", 0), (1, "x", 1), (2, "x", 1))),
    )  # fmt: skip
    run = read_run(path)
    assert shape(run) == {"1:x": (0.0, 1.0), "2:x": (1.0, 0.0, 1.0), "2:y": (0.0,)}
    assert {group.prompt_id for group in run.groups} == {"t"}
    first = run.groups[1].rollouts[1]
    assert (first.sample, first.row, first.prompt, first.completion, first.advantage) == (1, 2, "p", "r", 0.5)
    assert run.source.inferred == (
        "Columns were guessed by their names: reward from 'score', step from 'step', groups from 'uid'.",
        "Groups differ in size: 1 to 3 rollouts.",
    )


def test_an_id_groups_and_only_without_one_the_text_does(tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt": "same", "problem_id": n, "reward": 1.0} for n in (1, 2)]
    assert len(read_run(write(tmp_path / "a.jsonl", *rows)).groups) == 2
    bare = [{"step": 1, "prompt": "same", "reward": 1.0}] * 2
    run = read_run(write(tmp_path / "b.jsonl", *bare))
    assert len(run.groups) == 1
    assert "grouped by the prompt's text" in run.source.inferred[1]


def test_named_columns_win_over_usual_names(tmp_path: Path) -> None:
    rows = [{"uid": n, "q": "a", "reward": 0.0, "grade": n, "when": 7} for n in (0, 1)]
    path = write(tmp_path / "a.jsonl", *rows)
    columns = ColumnNames(prompt="q", reward="grade", step="when")
    run = read_run(path, ReadOptions(columns=columns))
    assert [(group.step, group.rewards) for group in run.groups] == [(7, (0.0, 1.0))]
    assert run.groups[0].rollouts[0].rewards == {"reward": 0.0, "grade": 0.0}
    assert [group.rewards for group in read_run(path, ReadOptions(columns=ColumnNames(group="q"))).groups] == [
        (0.0, 0.0)
    ]


def test_a_named_column_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"uid": 1, "reward": 0.0})
    with pytest.raises(UsageError, match="There is no column 'gruop' to take as group") as caught:
        read_run(path, ReadOptions(columns=ColumnNames(group="gruop")))
    assert caught.value.hint == "The columns are 'uid', 'reward'."


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"uid": 1, "grade": 1}, "has no column that is known to be a reward; its columns are 'uid', 'grade'"),
        ({"reward": 1}, "has no column to group rollouts by; its columns are 'reward'"),
    ],
)
def test_columns_that_cannot_be_guessed_are_asked_for(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "a.jsonl", row)
    for format in ("generic", "samples"):
        with pytest.raises(InputError, match=message):
            read_run(path, ReadOptions(reader=format))


def test_a_log_without_one_usable_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"uid": 1, "step": 1, "reward": None})
    with pytest.raises(InputError, match=r"has no usable rows; set aside: 1, first .*a\.jsonl:1: the reward is null"):
        read_run(path)


def test_a_log_without_rows(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").touch()
    with pytest.raises(InputError, match=r"has no usable rows\."):
        read_run(tmp_path, ReadOptions(reader="verl"))


def test_further_rewards_are_kept(tmp_path: Path) -> None:
    row = {"uid": 1, "step": 1, "reward": 1.0, "reward/x": 0.5, "format_reward": "bad", "acc": True, "length": 9}
    rewards = read_run(write(tmp_path / "a.jsonl", row)).groups[0].rollouts[0].rewards
    assert rewards == {"reward": 1.0, "reward/x": 0.5, "format_reward": None, "acc": 1.0}


def test_columns_that_add_up_to_the_reward_are_read_as_its_functions(tmp_path: Path) -> None:
    rows = [
        {"uid": n // 4, "step": 1, "correct": n % 3 == 0, "length": 5 + n * n % 23, "chars": 9 * n % 31}
        for n in range(40)
    ]
    whole = [{**row, "reward": float(row["correct"]) - 0.01 * row["length"]} for row in rows]
    run = read_run(write(tmp_path / "a.jsonl", *whole))
    assert set(run.groups[0].rollouts[0].rewards) == {"reward", "correct", "length"}
    sentence = "'reward' is the weighted sum of other columns, its reward functions: 1 correct - 0.01 length."
    assert sentence in run.source.inferred
    part = read_run(tmp_path / "a.jsonl", ReadOptions(columns=ColumnNames(reward="correct")))
    assert sentence in part.source.inferred
    assert part.groups[0].rewards == (1.0, 0.0, 0.0, 1.0)
    assert set(part.groups[0].rollouts[0].rewards) == {"reward", "correct", "length"}


def test_initial_weights_are_taken(tmp_path: Path) -> None:
    from tests.rollouts.build import adapter_folder

    initial = adapter_folder(tmp_path / "init", base="org/base")
    (tmp_path / "logs").mkdir()
    run = read_run(
        write(tmp_path / "logs" / "a.jsonl", {"uid": 1, "step": 1, "reward": 1.0}), ReadOptions(initial_weights=initial)
    )
    assert [(ref.num_updates, ref.base) for ref in run.weights] == [(0, "org/base")]


CELL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
CELLS = st.recursive(CELL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
KEYS = st.sampled_from(["step", "uid", "prompt", "reward", "score", "n", "c", "input", "output", "task_id", "passed"])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.dictionaries(KEYS, CELLS).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=20)),
    st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz", "a"]),
)
def test_no_content_makes_a_reader_crash(lines: list[bytes], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"\n".join(lines))
        try:
            run = read_run(path)
        except GradscopeError as error:
            assert error.message  # noqa: PT017 - either outcome is right; any other exception is not
        else:
            assert run.source.num_rows == sum(r is not None for group in run.groups for r in group.rewards) > 0

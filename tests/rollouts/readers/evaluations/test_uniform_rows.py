"""Tests of rows that hold their samples alike, and of Parquet files whose metadata shows that they do."""

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations import samples
from gradscope.rollouts.readers.evaluations.uniform_rows import LogColumns, uniform_prompts, uniform_table
from gradscope.rollouts.run import Run
from tests.rollouts.readers.lines import write_lines

REWARDS = frozenset(("reward", "rewards", "lengths", "format", "score"))
COLUMNS = LogColumns(named=ColumnNames(), step=None, benchmark=None, rewards=REWARDS)
ROW = {"id": "a", "responses": ["x", "y"], "rewards": [1.0, 0.0]}
USUAL = {"prompt": "p", "step": 1, "responses": ["a", "b"], "rewards": [0.0, 1], "solution": "a", "lengths": [3, 4]}


@pytest.mark.parametrize("change", [{}, {"task_id": 0}, {"task_id": "t"}, {"prompt": "q", "step": 2.0}])
def test_rows_that_are_alike_are_read_at_once_as_each_by_itself(change: dict[str, Any]) -> None:
    rows = [USUAL | change, USUAL | change | {"responses": ["c"], "rewards": [True], "lengths": [5]}]
    columns = LogColumns(named=ColumnNames(), step="step", benchmark="benchmark", rewards=REWARDS)
    by_row = [next(samples._prompts_of(row, index, "", columns)) for index, row in enumerate(rows)]
    listed = [{name: cell for name, cell in row.items() if not isinstance(cell, list)} for row in rows]
    keys = {"response": "responses", "reward": "rewards", "lengths": "lengths"}
    for row, outer in zip(rows, listed, strict=True):
        cells = zip(*(row[name] for name in keys.values()), strict=True)
        outer["rollouts"] = [dict(zip(keys, values, strict=True)) for values in cells]
    objects = [next(samples._prompts_of(row, index, "", columns)) for index, row in enumerate(listed)]
    for at_once, one_by_one in ((rows, by_row), (listed, objects)):
        pair = uniform_prompts(at_once, columns), one_by_one
        assert (
            len({re.sub(r"[][(),]", "", repr(prompts)) for prompts in pair}) == 1
        )  # whether lists or tuples hold them


@pytest.mark.parametrize(
    "change",
    [
        *({"prompt": ""}, {"step": "one"}, {"rewards": [1.0]}, {"responses": [], "rewards": [], "lengths": []}),
        *({"lengths": [3, "4"]}, {"rewards": [[1.0], [0.0]]}, {"responses": ["a", None]}, {"responses": "a"}),
        *({"model": "m"}, {"n": 2, "c": 0}, {"dataset": "d"}, {"question": ["a", "b"]}),
    ],
)
def test_a_row_that_differs_leaves_all_to_be_read_by_themselves(change: dict[str, Any]) -> None:
    columns = LogColumns(named=ColumnNames(), step="step", benchmark=None, rewards=REWARDS)
    assert uniform_prompts([USUAL | dict.fromkeys(change), USUAL | change], columns) == []
    assert uniform_prompts([USUAL | change] * 2, columns) == []


def test_counts_alike_are_read_at_once_as_each_by_itself() -> None:
    rows = [{"task_id": f"t{index}", "prompt": "?", "n": 3, "c": index} for index in range(4)]
    assert uniform_prompts(rows, COLUMNS) == [
        next(samples._prompts_of(row, index, "", COLUMNS)) for index, row in enumerate(rows)
    ]
    named = LogColumns(named=ColumnNames(num_samples="n", num_correct="c"), step=None, benchmark=None, rewards=REWARDS)
    assert uniform_prompts(rows, named) == uniform_prompts(rows, COLUMNS)
    flaws: tuple[dict[str, Any], ...] = (
        *({"n": "x"}, {"c": 9}, {"n": 0}, {"task_id": ""}, {"task_id": 1.5}, {"model": "m"}, {"dataset": "d"}),
        *({"passed": [True]}, {"prompt": {"text": "?"}}),
    )
    assert [flaw for flaw in flaws if uniform_prompts([*rows, rows[0] | flaw], COLUMNS)] == []
    assert [flaw for flaw in flaws if uniform_prompts([rows[0] | flaw] * 2, COLUMNS)] == []


def test_lists_in_a_parquet_file_are_read_as_those_of_json_lines(tmp_path: Path) -> None:
    rows = [{**USUAL, "prompt": f"p{i // 2}", "step": i % 2} for i in range(6)] + [{**USUAL, "rewards": [0.5, None]}]
    write_lines(tmp_path / "log.jsonl", *rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    runs = [read_run(tmp_path / name, rewards_only=True) for name in ("log.jsonl", "log.parquet")]
    shown = [([(group.group_id, group.prompt_id, group.rewards) for group in run.groups]) for run in runs]
    assert shown[0] == shown[1]
    assert [run.source.quarantined.num_rollouts for run in runs] == [1, 1]
    assert [group.rollouts[0].completion for group in read_run(tmp_path / "log.parquet").groups] == ["a"] * 7


def _write(folder: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "log.parquet", row_group_size=3)
    return folder / "log.parquet"


def _rows(**cells: Any) -> list[dict[str, Any]]:
    return [{**ROW, "id": f"p{index // 2}", **cells} for index in range(7)]


def _shown(run: Run) -> object:
    groups = [(name.step, name.group_id, name.prompt_id, name.rewards, name.rollouts[0].rewards) for name in run.groups]
    return groups, run.source.inferred, run.source.num_rows, run.source.quarantined.num_rollouts


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (_rows(), ("id", "rewards")),
        (_rows(format=[0.5, 0.0], finish=["stop", None]), ("id", "rewards", "format")),
        ([{**row, "step": i % 2} for i, row in enumerate(_rows(prompt="?"))], ("step", "id", "prompt", "rewards")),
        ([{**row, "id": 0} for row in _rows(problem="?", messages=[{"role": "user"}])], ("id", "problem", "rewards")),
        ([{"prompt": "?", **row} for row in _rows()], ("id", "prompt", "rewards")),
        ([{"prompt": row["id"], "responses": ["x"], "rewards": [0.5]} for row in _rows()], ("prompt", "rewards")),
        ([{**row, "benchmark": name} for row in _rows() for name in ("aime", "math")], ("id", "rewards")),
        ([{**row, "rewards": [i % 2 == 0, False]} for i, row in enumerate(_rows())], ("id", "rewards")),
        (_rows(**{"info.tags": ["x"], "info": {"tags": ["y"]}}), ("id", "rewards")),
    ],
)
def test_files_alike_are_read_without_responses_as_json_lines_are(
    rows: list[dict[str, Any]], names: tuple[str, ...], tmp_path: Path
) -> None:
    path = _write(tmp_path, *rows)
    log = LogColumns(named=ColumnNames(), step="step" if "step" in rows[0] else None, benchmark=None, rewards=REWARDS)
    columns = uniform_table(path, log)
    assert columns is not None
    assert columns.names == names
    write_lines(tmp_path / "log.jsonl", *rows)
    by_line = read_run(tmp_path / "log.jsonl", rewards_only=True)
    assert _shown(read_run(path, rewards_only=True)) == _shown(by_line)


@pytest.mark.parametrize("form", ["plain", "with a null", "unlike"])
def test_lists_of_how_samples_ended_are_read_without_responses_as_row_by_row(form: str, tmp_path: Path) -> None:
    rows = _rows(finish_reasons=["stop", "length"])
    rows[0] |= {"plain": {}, "with a null": {"finish_reasons": [None, "length"]}, "unlike": {"note": "?"}}[form]
    path = _write(tmp_path, *rows)
    columns = uniform_table(path, replace(COLUMNS, end="finish_reasons"))
    names = None if columns is None else columns.names
    assert names == (None if form == "with a null" else ("id", "rewards", "finish_reasons"))
    write_lines(tmp_path / "log.jsonl", *rows)
    statuses = ["unknown" if form == "with a null" else "completed", "truncated", *["completed", "truncated"] * 6]
    for file, rewards_only in product((path, tmp_path / "log.jsonl"), (True, False)):
        run = read_run(file, rewards_only=rewards_only)
        assert [rollout.status for group in run.groups for rollout in group.rollouts] == statuses


def test_lists_of_how_samples_ended_of_another_length_are_none(tmp_path: Path) -> None:
    rows = [*_rows(finish_reasons=["stop", "length"]), {**ROW, "id": "z", "finish_reasons": ["length"]}]
    write_lines(tmp_path / "log.jsonl", *rows)
    for file in (_write(tmp_path, *rows), tmp_path / "log.jsonl"):
        ends = [rollout.status for rollout in read_run(file, rewards_only=True).groups[-1].rollouts]
        assert ends == ["unknown", "unknown"]


@pytest.mark.parametrize(
    "rows",
    [
        _rows(prompts=["a", "b"]),
        _rows(messages=[{"role": "user", "content": "?"}]),
        _rows(samples=[{"reward": 1.0, "response": "x"}]),
        _rows(dataset="aime"),
        _rows(format=[1.0]),
        _rows(scores=[[1.0], [0.0]]),
        [*_rows(), ROW | {"responses": ["x", "y", "z"]}],
        [*_rows(), ROW | {"responses": ["x", None]}],
        [*_rows(), ROW | {"rewards": [1.0, None]}],
        [*_rows(), ROW | {"rewards": None, "responses": None}],
        [*_rows(), ROW | {"rewards": [], "responses": []}],
    ],
)
def test_files_with_other_columns_or_lists_are_read_in_full(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert uniform_table(_write(tmp_path, *rows), COLUMNS) is None


def test_a_named_column_or_a_step_that_the_file_lacks_is_read_in_full(tmp_path: Path) -> None:
    path = _write(tmp_path, *_rows())
    assert (
        uniform_table(path, LogColumns(named=ColumnNames(prompt_id="id"), step=None, benchmark=None, rewards=REWARDS))
        is None
    )
    assert uniform_table(path, LogColumns(named=ColumnNames(), step="step", benchmark=None, rewards=REWARDS)) is None


@pytest.mark.parametrize("flaw", [{"rewards": [math.nan, 1.0]}, {"id": None}, {"id": ""}, {"format": [1.0]}])
def test_odd_rows_are_set_aside_as_those_of_json_lines(flaw: dict[str, Any], tmp_path: Path) -> None:
    rows = [*_rows(format=[0.5, 0.5]), {**ROW, "format": [0.5, 0.5], **flaw}]
    if "format" in flaw:
        rows.append({**ROW, "format": [1.0, 0.0, 1.0]})  # of as many values in all
    path = _write(tmp_path, *rows)
    assert uniform_table(path, COLUMNS) is not None
    write_lines(tmp_path / "log.jsonl", *rows)
    by_line = read_run(tmp_path / "log.jsonl", rewards_only=True)
    assert _shown(read_run(path, rewards_only=True)) == _shown(by_line)

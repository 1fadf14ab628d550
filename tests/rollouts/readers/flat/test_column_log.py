from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.flat.column_log import column_log
from gradscope.rollouts.readers.flat.columns import FlatColumns
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.reduction.columns import LineColumns, TableColumns
from gradscope.rollouts.readers.reduction.log import ColumnLog
from tests.rollouts.readers.reduced import assert_same, write_lines


def log_of(*present: str, sample: str | None = None, **names: str) -> ColumnLog:
    flat = FlatColumns(names=ColumnNames(reward="reward", **names), rewards=("reward",), sample=sample)
    return column_log([Path("a.jsonl")], flat, present, QuarantineLog())


def test_a_file_is_read_as_its_name_promises() -> None:
    log = log_of(step="step", group="g")
    assert isinstance(log.declared(Path("a.jsonl")), LineColumns)
    assert log.declared(Path("a.jsonl")) is log.declared(Path("b.txt"))
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        assert isinstance(log.declared(Path(name)), TableColumns), name
    assert log.declared(Path("a.json")) is None


def test_keys_that_no_struct_can_have_are_for_the_row_reader(tmp_path: Path) -> None:
    assert log_of(group='g"').declared(Path("a.jsonl")) is None
    assert log_of(group="\ud800").declared(Path("a.jsonl")) is None
    rows = [{"re\tward": at % 2, "é": "g", "": 0, "\ud800": 1} for at in range(4)]
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    run = assert_same(path, columns=ColumnNames(reward="re\tward", group="é"))
    assert run is not None
    assert run.groups[0].rewards == (0.0, 1.0, 0.0, 1.0)


def test_one_key_may_be_several_columns(tmp_path: Path) -> None:
    rows = [{"step": at // 2, "reward": at % 2, "prompt": "p"} for at in range(4)]
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    for names in (
        {"group": "prompt"},
        {"group": "step"},
        {"prompt": "reward"},
        {"reward": "step"},
        {"prompt_id": "reward"},
    ):
        assert_same(path, columns=ColumnNames(**names), is_reduced=True)


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ({"generation_seconds": 2.5}, 2.5),
        ({"timing": {"llm_time": 2}}, 2.0),
        ({"timing": {"generation_ms": 1500}}, 1.5),
        ({"generation_seconds": -1, "timing": {"llm_time": 2}}, 2.0),
        ({"generation_seconds": "x", "timing": 3}, None),
    ],
)
def test_seconds_are_those_of_the_row_reader(tmp_path: Path, cells: dict[str, Any], seconds: float | None) -> None:
    rows = [{"group_id": "a", "step": 1, "reward": 1.0, "generation_seconds": None, "timing": None} | cells] * 2
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    table = reward_table(read_run(path, rewards_only=True).groups)
    assert seconds is None or (table.seconds is not None and table.seconds.tolist() == [seconds] * 2)
    assert [rollout.seconds for group in read_run(path).groups for rollout in group.rollouts] == [seconds] * 2


TABLES: list[dict[str, Any]] = [
    {"reward": [1.0, None, 0.0, float("nan")]},
    {"reward": [True, False, None, True]},
    {"reward": [1, 0, 1, 0], "step": ["1", "2.0", "x", None]},
    {"reward": ["1.0", "0.0", "x", None]},
    {"reward": [10**30, 1, 0, 2]} | {"step": [1.0, 1.5, -1.0, 3.0]},
    {"group_id": [1.5, 1.5, None, 2.0]},
    {"group_id": [True, False, True, None]},
    {"group_id": ["", "a", "a", "[a"]},
    {"group_id": [[1], [1], None, []]},
    {"prompt": ["p", None, "p", ""], "group_id": ["a", "a", "b", "b"]},
    {"prompt": [[{"role": "user", "content": "q"}]] * 3 + [None], "group_id": ["a", "a", "b", "b"]},
    {"prompt_id": ["p", None, "q", "q"], "prompt": ["x"] * 4, "group_id": ["a", "b", "c", "d"]},
    {"prompt_id": [7, 7, None, 8], "group_id": None},
    {"prompt": ["p", None, "p", ""], "group_id": None},
    {"prompt": [[{"role": "user", "content": "q"}]] * 2 + [None, [{"role": "user", "content": "r"}]], "group_id": None},
    {"advantage": [1.0, None, float("inf"), float("nan")]},
    {"sample_idx": [0, 1, 0, None], "group_id": ["a"] * 4},
    {"sample_idx": [0, 1, 2, 1], "group_id": ["a"] * 4, "completion": ["x", "y", "z", "w"]},
    {"generation_seconds": [1.0, None, -1.0, 2.0], "timing": [{"llm_time": 1.0}] * 3 + [None]},
    {"format_reward": [None, 0.5, float("inf"), 1.0], "score": ["1", "x", None, "2"]},
]


@pytest.mark.parametrize("cells", TABLES)
def test_tables_of_any_cells_have_the_answers_of_the_row_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[str, Any]
) -> None:
    usual = {"step": [1, 1, 2, 2], "group_id": ["a", "a", "b", "b"], "reward": [1.0, 0.0, 0.5, 0.5]}
    columns = {name: values for name, values in (usual | cells).items() if values is not None}
    columns |= (
        {"reward": [None if at is None else float(at) for at in columns["reward"]]}
        if 10**30 in columns["reward"]
        else {}
    )
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert_same(tmp_path / "a.parquet")
    text = [
        ",".join(columns),
        *(",".join("" if cell is None else str(cell) for cell in row) for row in zip(*columns.values(), strict=True)),
    ]
    if not any(isinstance(cell, list | dict) for values in columns.values() for cell in values):
        (tmp_path / "b.csv").write_text("\n".join(text) + "\n")
        assert_same(tmp_path / "b.csv")


def test_an_empty_prompt_tells_no_group(tmp_path: Path) -> None:
    rows = [
        {"prompt": text, "completion": "4", "reward": 1.0, "step": 1} for text in ("2+2", "", "2+2", "2\u002b2", None)
    ]
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    run = assert_same(path, is_reduced=True)
    assert run is not None
    assert [(one.reason, one.num_rows) for one in run.source.quarantined.reasons] == [("prompt is missing", 2)]


def test_prompts_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    prompts = ['"é\\n/"', '"\\u00e9\\u000a\\/"', '"\\u00e9\\n/"', '["é"]', '["\\u00e9"]', '"\\ud83d\\ude00"', '"😀"']
    path = write_lines(tmp_path / "a.jsonl", [f'{{"step": 1, "reward": 1, "prompt": {text}}}' for text in prompts])
    run = assert_same(path, is_reduced=True)
    assert run is not None
    assert [group.size for group in run.groups] == [3, 2, 2]


def test_a_broken_advantage_is_told(tmp_path: Path) -> None:
    row = '{"group_id": "g", "step": 1, "reward": 1, "advantage": %s}'
    cells = ("0.5", "null", "NaN", "-Infinity", '"x"', "1e999")
    path = write_lines(tmp_path / "a.jsonl", [row % cell for cell in cells])
    run = assert_same(path, is_reduced=True)
    assert run is not None
    assert [one.num_rows for one in run.source.quarantined.reasons] == [3]

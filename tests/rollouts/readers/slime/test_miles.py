import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.slime.miles import TokenColumns
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import STRANGE, assert_reduced_alike
from tests.rollouts.readers.reduced import write_lines as write_damaged
from tests.rollouts.readers.slime.test_rollouts import archive, sample


def test_the_file_of_tokens_of_a_trajectory_file() -> None:
    log = REPOSITORY / "fixtures/logs/miles/trajectory"
    columns = TokenColumns.of_file(log / "1.jsonl")
    assert columns is not None
    assert columns.rows_by_sample[6] == [2, 3]
    assert sum(len(sequence.completion_ids) for sequence in columns.sequences([2, 3])) == 4
    assert TokenColumns.of_file(Path("nowhere/0.jsonl")) is None


LOG = REPOSITORY / "fixtures/logs/miles"


def row(index: Any = 0, **cells: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "p"}, {"role": "assistant", "content": f"c{index}"}]
    return {"sample_index": index, "group_index": 0, "reward": 1.0, "prompt": "p", "messages": messages, **cells}


def columns(index: Any, **cells: Any) -> dict[str, Any]:
    return {"sample_index": index, "response_length": 1, "tokens": [5, 2], "loss_mask": [1], **cells}


def read(tmp_path: Path, *rows: Any, side_rows: list[dict[str, Any]] | None = None) -> Run:
    write_lines(tmp_path / "trajectory/3.jsonl", *rows)
    if side_rows is not None:
        (tmp_path / "dashboard_columns").mkdir()
        pq.write_table(pa.Table.from_pylist(side_rows), tmp_path / "dashboard_columns/rollout_3.parquet")
    return read_run(tmp_path)


@pytest.mark.parametrize("below", ["", "trajectory"])
def test_conversations_are_joined_with_their_tokens(below: str) -> None:
    run = read_run(LOG / below)
    assert run.source.format == "miles"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0), "1:3": (1.0, 0.0)}
    first, masked = run.groups[0].rollouts[0], run.groups[1].rollouts[1]
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((5, 9), (11, 2), (-0.5, -0.25))
    assert (first.prompt, first.completion) == ("0?", "4")
    assert (masked.mask, masked.status) == ((True, False), "truncated")
    assert run.source.quarantined.num_rows == 0


def test_a_sample_of_several_sequences_counts_once_with_the_tokens_of_all() -> None:
    run = read_run(LOG / "trajectory/1.jsonl")
    branching = run.groups[1].rollouts[0]
    assert (branching.reward, branching.completion, branching.num_tokens) == (1.0, "right", 4)
    assert [sequence.completion_ids for sequence in branching.sequences] == [(17, 2), (17, 2)]
    assert any("several sequences" in sentence for sentence in run.source.inferred)


@pytest.mark.parametrize("side_rows", [[columns(0)], [columns(0), columns(0, response_length=7)]], ids=["one", "odd"])
def test_a_part_of_the_sequences_never_passes_for_all(tmp_path: Path, side_rows: list[dict[str, Any]]) -> None:
    (rollout,) = read(tmp_path, row(), row(), side_rows=side_rows).groups[0].rollouts
    assert (rollout.reward, rollout.completion_ids, rollout.earlier) == (1.0, None, ())


@pytest.mark.parametrize("index", [[0], {"a": 1}, "x", float("nan"), -1, True])
def test_an_index_that_is_none_belongs_to_no_sample(tmp_path: Path, index: Any) -> None:
    run = read(tmp_path, row(), side_rows=[columns(index)])
    assert (rewards_of(run), run.groups[0].rollouts[0].completion_ids) == ({"3:0": (1.0,)}, None)
    assert run.source.quarantined.num_rows == 1


def test_without_the_parquet_file_there_are_no_tokens(tmp_path: Path) -> None:
    shutil.copytree(LOG / "trajectory", tmp_path / "trajectory")
    run = read_run(tmp_path)
    assert rewards_of(run) == rewards_of(read_run(LOG))
    assert "pip install miles[dashboard]" in run.source.missing[0]
    assert {rollout.completion_ids for group in run.groups for rollout in group.rollouts} == {None}


def test_the_complete_dump_takes_precedence(tmp_path: Path) -> None:
    shutil.copytree(LOG, tmp_path / "run")
    archive(tmp_path / "run/rollout_data/0.pt", {"rollout_id": 0, "samples": [sample(0), sample(1)]})
    assert read_run(tmp_path / "run").source.format == "slime"


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        row(0),
        row(1, reward=None),
        row(2, group_index="x"),
        row(3, messages=None, prompt=None),
        row(4, messages=[4]),
        row(5),
        row(5, reward=0.0),
        row("x"),
        row(None),
    ]
    bad = [columns(0, tokens=None), columns(3, loss_mask=[0]), columns(9), columns(None)]
    run = read(tmp_path, *rows, side_rows=bad)
    assert rewards_of(run) == {"3:0": (1.0, None, 1.0, 1.0, None, 1.0, 1.0)}
    assert set_aside(run) == {
        "the reward is null": 1,
        "group_index is not a whole number": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "the token ids are not a list of whole numbers": 1,
        "no token of the row was sampled": 1,
        "the sample kept no conversation, so that neither its group nor its reward is known": 2,
    }


def test_a_damaged_parquet_file_is_set_aside(tmp_path: Path) -> None:
    shutil.copytree(LOG, tmp_path / "run")
    (tmp_path / "run/dashboard_columns/rollout_1.parquet").write_bytes(b"PAR1")
    (lost,) = read_run(tmp_path / "run").source.quarantined.lost
    assert "rollout_1.parquet is not a readable Parquet file" in lost


@pytest.mark.parametrize("key", sorted(row()))
def test_an_odd_cell_has_the_answer_of_the_row_reader(tmp_path: Path, key: str) -> None:
    for at, value in enumerate(STRANGE):
        rows = [row(0), row(1, **{key: value}), row(2), row(1, **{key: value})]
        (tmp_path / str(at)).mkdir()
        lines = [json.dumps(cells) for cells in rows]
        write_damaged(tmp_path / str(at) / "trajectory/3.jsonl", lines)
        assert_reduced_alike(tmp_path / str(at))


def test_the_sample_of_the_format_is_reduced() -> None:
    run = assert_reduced_alike(LOG)
    assert isinstance(run, Run)
    assert rewards_of(run)["1:3"] == (1.0, 0.0)


@pytest.mark.parametrize(
    "rows",
    [
        [row(0), row(0), row(1), row(1, reward=0.0)],
        [row(0, status="a"), row(0, status="b"), row(0, status="a")],
        [row(0), row("0"), row(0.0), row(True)],
        [row(0, group_index=0), row(0, group_index=1)],
        [row(0, messages=None), row(1, messages=[{"role": "assistant", "content": "é\U0001f600"}])],
        [row(0, reward=float("nan")), row(1, reward=float("inf"))],
    ],
)
def test_samples_of_several_rows(tmp_path: Path, rows: list[Any]) -> None:
    write_lines(tmp_path / "trajectory/3.jsonl", *rows)
    write_lines(tmp_path / "trajectory/03.jsonl", *rows)
    assert_reduced_alike(tmp_path)
    (tmp_path / "dashboard_columns").mkdir()
    side_rows = [columns(0), columns(0, tokens=[1, 2, 3]), columns(1, loss_mask=[0]), columns(2)]
    pq.write_table(pa.Table.from_pylist(side_rows), tmp_path / "dashboard_columns/rollout_3.parquet")
    assert_reduced_alike(tmp_path)

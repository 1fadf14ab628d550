from __future__ import annotations

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.groups import GroupsOnDisk, holds_rewards_alone
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.trainers.slime import logged_tokens, token_rows
from gradscope.rollouts.run import Run
from tests.conftest import LOGS, REPOSITORY
from tests.rollouts.readers.lines import naming, refusal, rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike

SLIME = LOGS / "slime"


def archive(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(document))
    return path


def sample(index: int, **cells: Any) -> dict[str, Any]:
    return {"group_index": 0, "index": index, "tokens": [5, 9, 2], "response_length": 2, "reward": 1.0, **cells}


@pytest.mark.parametrize("path", [SLIME, SLIME / "rollout_data"])
def test_groups_tokens_and_what_a_filter_hides(path: Path) -> None:
    run = read_run(path)
    assert run.source.format == "slime"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0)}
    assert isinstance(run.groups, GroupsOnDisk)
    assert run.groups[0].rollouts[0].completion
    reduced = assert_reduced_alike(path)
    assert isinstance(reduced, Run)
    assert holds_rewards_alone(reduced.groups)
    assert "lower bound" in run.source.missing[0]
    first, masked = run.groups[0].rollouts[0], run.groups[1].rollouts[0]
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((5, 9), (11, 2), (-0.1, -0.1))
    assert (masked.mask, masked.status) == ((True, False, True), "truncated")


def test_of_several_rewards_the_first_or_the_named_one_counts(tmp_path: Path) -> None:
    pair = [sample(index, reward={"accuracy": float(index), "format": 1.0}) for index in range(2)]
    folder = archive(tmp_path / "rollout_data" / "3.pt", {"rollout_id": 3, "samples": pair}).parent.parent
    assert rewards_of(read_run(folder)) == {"3:0": (0.0, 1.0)}
    assert rewards_of(read_run(folder, naming(reward="format"))) == {"3:0": (1.0, 1.0)}
    refusal(folder, "has no reward 'length'", naming(reward="length"))


def test_samples_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    samples = [
        sample(0),
        sample(1, group_index=None),
        sample(2, tokens=None),
        sample(3, response_length=9),
        sample(4, loss_mask=[1]),
        sample(5, reward=None),
        sample(0),
    ]
    run = read_run(archive(tmp_path / "0.pt", {"rollout_id": 0, "samples": samples}))
    assert rewards_of(run) == {"0": (1.0, None)}
    assert set_aside(run) == {
        "group_index is not a whole number": 1,
        "the token ids are not a list of whole numbers": 2,
        "the lists of tokens differ in length": 1,
        "the reward is null": 1,
        "the row repeats an earlier one of the same sample": 1,
    }
    refusal(archive(tmp_path / "1.pt", {"rollout_id": "x", "samples": [sample(0)]}), "the step is not a whole number")


@pytest.mark.parametrize("name", ["rollout_3.pt", "dump-rollout_3.pt", "3.pt"])
@pytest.mark.parametrize("folder", [".", "rollout_data"])
def test_a_name_may_have_anything_before_the_number(tmp_path: Path, folder: str, name: str) -> None:
    file = archive(tmp_path / folder / name, {"rollout_id": 3, "samples": [sample(0), sample(1, reward=0.0)]})
    archive(file.with_name(name.replace("3", "eval_3")), {"rollout_id": 3, "samples": [sample(7)]})
    assert rewards_of(read_run(tmp_path)) == rewards_of(read_run(file)) == {"3:0": (1.0, 0.0)}


@pytest.mark.parametrize("share", [0, 0.5])
def test_a_file_that_is_cut_off_is_lost_and_a_bare_pickle_is_none(share: float, tmp_path: Path) -> None:
    for step in (1, 2):
        file = archive(tmp_path / f"rollout_data/{step}.pt", {"rollout_id": step, "samples": [sample(0), sample(1)]})
    (tmp_path / "rollout_data" / "3.pt").write_bytes(pickle.dumps({}))
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    run = read_run(tmp_path)
    assert rewards_of(run) == {"1:0": (1.0, 1.0)}
    assert [error.split(" cannot be read")[0] for error in run.source.quarantined.lost] == [str(file)]


def test_other_archives_of_that_name_are_no_rollouts(tmp_path: Path) -> None:
    archive(tmp_path / "model_rank_0.pt", {"weight": [1.0]})
    (tmp_path / "broken_1.pt").write_bytes(b"PK\x03\x04")
    refusal(tmp_path, "is not a log that gradscope knows")


SAMPLE = {"tokens": [5, 9, 2], "response_length": 2, "loss_mask": None, "rollout_log_probs": None}


def test_the_last_tokens_are_the_completion() -> None:
    tokens = logged_tokens({**SAMPLE, "loss_mask": [0, 1], "rollout_log_probs": [0.0, -0.5]})
    assert (tokens.prompt_ids, tokens.completion_ids, tokens.logprobs) == ((5, 9), (2,), (-0.5,))
    assert logged_tokens(SAMPLE).mask == (True, True)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"response_length": None}, "not a list of whole numbers"),
        ({"response_length": 0}, "not a list of whole numbers"),
        ({"rollout_log_probs": [-0.5]}, "differ in length"),
        ({"loss_mask": [0, 0]}, "no token of the row was sampled"),
    ],
)
def test_tokens_that_contradict_themselves_are_of_no_use(cells: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableRowError, match=reason):
        logged_tokens({**SAMPLE, **cells})


@pytest.mark.parametrize("key", [("a", 1), None, b"x", 1.5])
@pytest.mark.parametrize("rewards_only", [True, False])
def test_keys_that_are_no_texts_cost_nothing(tmp_path: Path, key: Any, rewards_only: bool) -> None:
    bad = {key: 1, "b": 2}
    cells = [bad, {"prompt": [bad]}, {"prompt": bad, "response": bad}, {"metadata": {key: bad}}, {"status": bad}]
    samples = [{**sample(index), **cell} for index, cell in enumerate(cells)]
    file = archive(tmp_path / "rollout_data" / "3.pt", {"rollout_id": 3, "samples": samples, key: 0})
    run = read_run(file.parent.parent, rewards_only=rewards_only)
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0,) * 5}, {})


def cut(index: int, reward: float, *tokens: int) -> dict[str, object]:
    return sample(index, rollout_id=index, reward=reward, tokens=list(tokens), prompt="2+2?", response=str(tokens))


def test_a_rollout_that_was_cut_into_samples_counts_once(tmp_path: Path) -> None:
    """As agents' are, whose contexts are compacted: the samples share index, group and rollout."""
    samples = [cut(0, 1.0, 5, 9, 2), cut(0, 1.0, 5, 9, 3), cut(0, 1.0, 5, 9, 2), cut(1, 0.0, 5, 9, 4)]
    path = archive(tmp_path / "rollout_data/3.pt", {"rollout_id": 3, "samples": samples})
    run = read_run(path)
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0, 0.0)}, {})
    first, second = run.groups[0].rollouts
    assert [name.completion_ids for name in first.earlier] + [first.completion_ids] == [(9, 2), (9, 3), (9, 2)]
    assert (second.earlier, "several sequences" in run.source.inferred[0]) == ((), True)
    assert_reduced_alike(path)


def test_samples_of_one_rollout_with_rewards_of_their_own_all_count(tmp_path: Path) -> None:
    """As those of several agents: the mean over what slime's own rewards within a group are centred on."""
    samples = [cut(0, 1.0, 5, 9, 2), cut(0, 0.5, 5, 9, 3), {**cut(1, 0.0, 5, 9, 4), "rollout_id": [[]]}]
    run = read_run(archive(tmp_path / "rollout_data/3.pt", {"rollout_id": 3, "samples": samples}))
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0, 0.5, 0.0)}, {})


def test_an_evaluation_is_grouped_by_prompts_and_told_from_training(tmp_path: Path) -> None:
    """slime numbers the samples of each data set from 0, and no group."""
    numbered = [("a", 1.0), ("a", 0.0), ("b", 0.0), ("b", 0.0), ("c", 1.0), ("c", 1.0)]
    samples = [sample(i % 4, group_index=None, reward=reward, prompt=text) for i, (text, reward) in enumerate(numbered)]
    run = read_run(archive(tmp_path / "rollout_data/eval_7.pt", {"rollout_id": 7, "samples": samples}))
    assert run.source.format == "slime-eval"
    assert rewards_of(run) == {"7:0": (1.0, 0.0), "7:1": (0.0, 0.0), "7:2": (1.0, 1.0)}
    archive(tmp_path / "rollout_data/7.pt", {"rollout_id": 7, "samples": [cut(0, 1.0, 5, 9, 2), cut(1, 0.0, 5, 9, 4)]})
    pair = read_run(tmp_path)
    assert (pair.source.format, rewards_of(pair)) == ("slime", {"7:0": (1.0, 0.0)})


LOG = REPOSITORY / "fixtures/logs/relax"


def row(index: Any = 0, **cells: Any) -> dict[str, Any]:
    cells = {"rollout_id": 3, "group_index": 0, "reward": 1.0, "prompt": "p", "response": "r", **cells}
    return {"sample_index": index, **cells}


@pytest.mark.parametrize("below", ["", "rollout_result", "rollout_result/train"])
def test_groups_of_every_step_without_the_evaluation(below: str) -> None:
    assert rewards_of(read_run(LOG / "rollout_result/train/1.jsonl")) == {"1:2": (1.0, 1.0), "1:3": (0.0, 1.0)}
    run = read_run(LOG / below)
    assert run.source.format == "relax"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0), "1:3": (0.0, 1.0)}
    assert [rollout.status for rollout in run.groups[1].rollouts] == ["completed", "truncated"]
    assert "lower bound" in run.source.missing[0]
    assert_reduced_alike(LOG / below)


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        row(0),
        row(1, reward=None),
        row(3, group_index=None),
        row(4, rollout_id="three"),
        {"rollout_id": 3},
        row(0, response="other"),
        row(5),
    ]
    run = read_run(write_lines(tmp_path / "3.jsonl", *rows))
    assert rewards_of(run) == {"3:0": (None, None, 1.0)}
    assert set_aside(run) == {
        "the reward is null": 1,
        "group_index is not a whole number": 2,
        "the step is not a whole number": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
    }


def test_the_file_of_tokens_of_a_trajectory_file() -> None:
    log = REPOSITORY / "fixtures/logs/miles/trajectory"
    table, rows = token_rows(log / "1.jsonl")
    assert table is not None
    assert rows[6] == [2, 3]
    assert sum(len(logged_tokens(cells).completion_ids) for cells in table.slice(2, 2).to_pylist()) == 4
    assert token_rows(Path("nowhere/0.jsonl")) == (None, {})


MILES_LOG = REPOSITORY / "fixtures/logs/miles"


def miles_row(index: Any = 0, **cells: Any) -> dict[str, Any]:
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
    run = read_run(MILES_LOG / below)
    assert run.source.format == "miles"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0), "1:3": (1.0, 0.0)}
    first, masked = run.groups[0].rollouts[0], run.groups[1].rollouts[1]
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((5, 9), (11, 2), (-0.5, -0.25))
    assert (first.prompt, first.completion) == ("0?", "4")
    assert (masked.mask, masked.status) == ((True, False), "truncated")
    assert run.source.quarantined.num_rows == 0
    assert_reduced_alike(MILES_LOG / below)


def test_a_sample_of_several_sequences_counts_once_with_the_tokens_of_all() -> None:
    run = read_run(MILES_LOG / "trajectory/1.jsonl")
    branching = run.groups[1].rollouts[0]
    assert (branching.reward, branching.completion, branching.num_tokens) == (1.0, "right", 4)
    assert [sequence.completion_ids for sequence in branching.sequences] == [(17, 2), (17, 2)]
    assert any("several sequences" in sentence for sentence in run.source.inferred)


@pytest.mark.parametrize("side_rows", [[columns(0)], [columns(0), columns(0, response_length=7)]], ids=["one", "odd"])
def test_a_part_of_the_sequences_never_passes_for_all(tmp_path: Path, side_rows: list[dict[str, Any]]) -> None:
    (rollout,) = read(tmp_path, miles_row(), miles_row(), side_rows=side_rows).groups[0].rollouts
    assert (rollout.reward, rollout.completion_ids, rollout.earlier) == (1.0, None, ())


@pytest.mark.parametrize("index", [[0], {"a": 1}, "x", float("nan"), -1, True])
def test_an_index_that_is_none_belongs_to_no_sample(tmp_path: Path, index: Any) -> None:
    run = read(tmp_path, miles_row(), side_rows=[columns(index)])
    assert (rewards_of(run), run.groups[0].rollouts[0].completion_ids) == ({"3:0": (1.0,)}, None)
    assert run.source.quarantined.num_rows == 1


def test_without_the_parquet_file_there_are_no_tokens(tmp_path: Path) -> None:
    shutil.copytree(MILES_LOG / "trajectory", tmp_path / "trajectory")
    run = read_run(tmp_path)
    assert rewards_of(run) == rewards_of(read_run(MILES_LOG))
    assert "pip install miles[dashboard]" in run.source.missing[0]
    assert {rollout.completion_ids for group in run.groups for rollout in group.rollouts} == {None}


def test_the_complete_dump_takes_precedence(tmp_path: Path) -> None:
    shutil.copytree(MILES_LOG, tmp_path / "run")
    archive(tmp_path / "run/rollout_data/0.pt", {"rollout_id": 0, "samples": [sample(0), sample(1)]})
    assert read_run(tmp_path / "run").source.format == "slime"


def test_rows_of_miles_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        miles_row(0),
        miles_row(1, reward=None),
        miles_row(2, group_index="x"),
        miles_row(3, messages=None, prompt=None),
        miles_row(4, messages=[4]),
        miles_row(5),
        miles_row(5, reward=0.0),
        miles_row("x"),
        miles_row(None),
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
    shutil.copytree(MILES_LOG, tmp_path / "run")
    (tmp_path / "run/dashboard_columns/rollout_1.parquet").write_bytes(b"PAR1")
    (lost,) = read_run(tmp_path / "run").source.quarantined.lost
    assert "rollout_1.parquet is not a readable Parquet file" in lost


@pytest.mark.parametrize(
    "rows",
    [
        [miles_row(0), miles_row(0), miles_row(1), miles_row(1, reward=0.0)],
        [miles_row(0, status="a"), miles_row(0, status="b"), miles_row(0, status="a")],
        [miles_row(0), miles_row("0"), miles_row(0.0), miles_row(True)],
        [miles_row(0, group_index=0), miles_row(0, group_index=1)],
        [miles_row(0, messages=None), miles_row(1, messages=[{"role": "assistant", "content": "é\U0001f600"}])],
        [miles_row(0, reward=float("nan")), miles_row(1, reward=float("inf"))],
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

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.groups import GroupsOnDisk, holds_rewards_alone
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.run_files import NO_NORMS
from gradscope.rollouts.readers.trainers.token_logs import logged_tokens, token_rows
from gradscope.rollouts.run import Run
from tests.conftest import LOGS, REPOSITORY
from tests.rollouts.readers.lines import refusal, rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike
from tests.rollouts.readers.test_run_files import write_model
from tests.rollouts.test_event_file import record, scalar

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
    both = [sample(at, reward={"accuracy": float(at), "format": 1.0}) for at in range(2)]
    folder = archive(tmp_path / "rollout_data" / "3.pt", {"rollout_id": 3, "samples": both}).parent.parent
    assert rewards_of(read_run(folder)) == {"3:0": (0.0, 1.0)}
    assert rewards_of(read_run(folder, ReadOptions(columns=ColumnNames(reward="format")))) == {"3:0": (1.0, 1.0)}
    refusal(folder, "has no reward 'length'", ReadOptions(columns=ColumnNames(reward="length")))


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
        file = archive(
            tmp_path / "rollout_data" / f"{step}.pt", {"rollout_id": step, "samples": [sample(0), sample(1)]}
        )
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
    odd = {key: 1, "b": 2}
    cells = [odd, {"prompt": [odd]}, {"prompt": odd, "response": odd}, {"metadata": {key: odd}}, {"status": odd}]
    samples = [{**sample(at), **cell} for at, cell in enumerate(cells)]
    file = archive(tmp_path / "rollout_data" / "3.pt", {"rollout_id": 3, "samples": samples, key: 0})
    run = read_run(file.parent.parent, rewards_only=rewards_only)
    assert (rewards_of(run), set_aside(run)) == ({"3:0": (1.0,) * 5}, {})


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


def trace_row(**cells: Any) -> dict[str, Any]:
    row = {"step": 1, "prompt_idx": 0, "prompt_tokens": [1], "response_tokens": [2], "reward": 1.0, "logprobs": None}
    return {**row, **cells}


def test_open_instruct_keeps_tokens_and_says_that_dead_groups_are_hidden() -> None:
    run = read_run(LOGS / "open_instruct")
    assert rewards_of(run) == {"3:0": (10.0, 0.0), "3:1": (0.0, 10.0), "4:0": (10.0, 0.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((1, 5), (9, 2), (-0.2, -0.01))
    assert first.mask == (True, True)
    assert (first.advantage, first.status, second.status) == (1.0, "completed", "truncated")
    assert "lower bound" in run.source.missing[0]
    assert "filter_zero_std_samples" in run.source.missing[0]


def test_open_instruct_prompts_of_one_text_stay_apart_by_prompt_idx(tmp_path: Path) -> None:
    rows = [trace_row(prompt_idx=index) for index in (0, 0, 1, 1)]
    run = read_run(write_lines(tmp_path / "a_rollouts_000000.jsonl", *rows))
    assert [group.size for group in run.groups] == [2, 2]
    assert len({group.prompt_id for group in run.groups}) == 1


def test_open_instruct_is_regrouped_by_tokens_where_prompt_idx_mixes_prompts(tmp_path: Path) -> None:
    rows = [trace_row(prompt_idx=at // 2, prompt_tokens=[prompt]) for at, prompt in enumerate((1, 2, 2))]
    run = read_run(write_lines(tmp_path / "a_rollouts_000000.jsonl", *rows, trace_row(step=2)))
    assert [group.size for group in run.groups] == [1, 2, 1]
    assert "At 1 step prompt_idx mixes prompts" in run.source.inferred[0]


def test_open_instruct_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    bad = [{"step": 1.5}, {"prompt_idx": None}, {"prompt_tokens": "1"}, {"logprobs": [-1.0, -1.0]}, {"reward": "1"}]
    run = read_run(write_lines(tmp_path / "a_rollouts_0.jsonl", trace_row(), *(trace_row(**cells) for cells in bad)))
    assert rewards_of(run) == {"1:0": (1.0, None)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "prompt_idx is not a whole number": 1,
        "the token ids are not a list of whole numbers": 1,
        "the lists of tokens differ in length": 1,
        "the reward is text": 1,
    }


def test_nemo_rl_rows_are_batches_of_one_and_padding_is_cut() -> None:
    run = read_run(LOGS / "nemo_rl")
    assert [(group.step, group.rewards) for group in run.groups] == [(1, (1.0, 0.0)), (1, (1.0, 1.0))]
    rollout = run.groups[1].rollouts[1]
    assert (rollout.prompt_ids, rollout.completion_ids) == ((5, 8, 7), (13, 14, 2))
    assert (rollout.logprobs, rollout.token_advantages) == ((-0.1,) * 3, (0.0,) * 3)
    assert "equal prompt tokens at one step" in run.source.inferred[0]
    assert [sentence for sentence in run.source.missing if "grad_norm" not in sentence] == []


def test_nemo_rl_with_dynamic_sampling_takes_the_trained_rewards_and_says_what_is_hidden(tmp_path: Path) -> None:
    row = json.loads((LOGS / "nemo_rl/exp_001/train_data_step1.jsonl").read_text().splitlines()[0])
    row |= {"filtered_rewards": [0.5], "sample_loss_mask": [0.0]}
    run = read_run(write_lines(tmp_path / "train_data_step7.jsonl", row))
    assert [(group.step, group.rewards) for group in run.groups] == [(7, (0.5,))]
    assert run.groups[0].rollouts[0].mask == (False, False)
    assert "Dynamic sampling was on" in run.source.missing[0]


def test_nemo_rl_rows_that_hold_only_a_reward_before_the_filter_are_no_rollouts(tmp_path: Path) -> None:
    """As its synchronous trainer writes them: all rewards first, and beside them what is left of the other lists."""
    rows = list(map(json.loads, (LOGS / "nemo_rl/exp_001/train_data_step1.jsonl").read_text().splitlines()))
    left = [{"rewards": [at / 4], "filtered_rewards": [float(at)], **rows[at]} for at in range(2)]
    lost = [{"rewards": [1.0], **{key: [] for key in rows[0] if key != "rewards"}, "filtered_rewards": []}] * 2
    run = read_run(write_lines(tmp_path / "train_data_step7.jsonl", *left, *lost))
    assert ([group.rewards for group in run.groups], set_aside(run)) == ([(0.0, 1.0)], {})
    assert_reduced_alike(tmp_path)


def test_nemo_rl_without_tokens_is_grouped_by_the_text_before_the_last_message(tmp_path: Path) -> None:
    rows = [{"content": [["2+2?", answer]], "rewards": [float(answer == "4")]} for answer in "45"]
    run = read_run(write_lines(tmp_path / "train_data_step0.jsonl", *rows))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0)]
    assert "all messages but the last" in run.source.inferred[0]


def test_nemo_rl_rows_whose_lists_are_too_short_are_set_aside(tmp_path: Path) -> None:
    good = {"content": [["q", "a"]], "rewards": [1.0]}
    bad = {**good, "token_ids": [[1, 2]], "token_loss_mask": [[0, 1]], "input_lengths": [3]}
    run = read_run(write_lines(tmp_path / "train_data_step1.jsonl", good, bad))
    assert set_aside(run) == {"the lists of tokens differ in length": 1}


@pytest.mark.slow
@pytest.mark.parametrize("previous", [[[-0.9] * 7], [[-0.9]], [[None] * 7], None, "none", [[[]]]])
def test_nemo_rls_log_probabilities_are_the_samplers_whatever_the_trainers_are(tmp_path: Path, previous: Any) -> None:
    row = json.loads((LOGS / "nemo_rl/exp_001/train_data_step1.jsonl").read_text().splitlines()[0])
    run = read_run(write_lines(tmp_path / "train_data_step1.jsonl", {**row, "prev_logprobs": previous}))
    assert run.groups[0].rollouts[0].logprobs == (-0.1, -0.1)
    del row["generation_logprobs"]
    run = read_run(write_lines(tmp_path / "train_data_step1.jsonl", {**row, "prev_logprobs": previous}))
    assert run.groups[0].rollouts[0].logprobs is None
    assert run.source.quarantined.num_rows == 0


def test_nemo_rl_has_the_log_probabilities_of_trainer_and_sampler(tmp_path: Path) -> None:
    assert read_run(LOGS / "nemo_rl").groups[1].rollouts[1].trainer_logprobs == (-0.11,) * 3
    row = json.loads((LOGS / "nemo_rl/exp_001/train_data_step1.jsonl").read_text().splitlines()[0])
    row["prev_logprobs"][0] = row["prev_logprobs"][0][:2]
    run = read_run(write_lines(tmp_path / "train_data_step7.jsonl", row))
    assert run.groups[0].rollouts[0].trainer_logprobs is None
    assert run.groups[0].rollouts[0].logprobs == (-0.1, -0.1)


NEMO_RL = LOGS / "nemo_rl"


def copy_of(tmp_path: Path) -> Path:
    return shutil.copytree(NEMO_RL, tmp_path / "logs")


def test_without_norms_the_switch_is_named(tmp_path: Path) -> None:
    run = read_run(copy_of(tmp_path))
    assert run.metrics == {}
    assert NO_NORMS in run.source.missing
    assert (run.settings.get("trainer"), run.settings.get("bf16")) == ("nemo-rl", True)


def test_events_weights_and_configuration_are_read_with_the_data(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    (log / "exp_001" / "tensorboard").mkdir()
    events = log / "exp_001" / "tensorboard" / "events.out.tfevents.1.a"
    events.write_bytes(record(scalar(1, b"train/grad_norm", 0.5)) + record(scalar(1, b"train/reward", 0.25)))
    checkpoint = write_model(log / "results" / "grpo" / "step_1" / "hf").parent
    (checkpoint / "config.yaml").write_text("policy:\n  precision: float32\n  train_micro_batch_size: 4\n")
    (log / "results" / "grpo" / "step_2" / "policy" / "weights").mkdir(parents=True)
    run = read_run(log / "exp_001")
    assert run.metrics == {1: {"grad_norm": 0.5, "reward": 0.25}}
    assert [weights.num_updates for weights in run.weights] == [1]
    assert "convert_dcp_to_hf.py" in run.unmerged_weights[2].advice
    assert (run.settings.get("bf16"), run.settings.get("per_device_train_batch_size")) == (False, 4)


def test_events_in_the_folder_of_the_data_are_read_and_those_of_a_sibling_are_not(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    other = log / "exp_002" / "tensorboard"
    other.mkdir(parents=True)
    other.joinpath("events.out.tfevents.1.a").write_bytes(record(scalar(1, b"train/grad_norm", 9.0)))
    assert read_run(log / "exp_001").metrics == {}
    os.mkfifo(log / "events.out.tfevents.1.a")
    assert read_run(log / "exp_001").metrics == {}
    (log / "tensorboard").mkdir()
    (log / "tensorboard" / "events.out.tfevents.1.a").write_bytes(record(scalar(1, b"train/grad_norm", 0.5)))
    assert read_run(log / "exp_001").metrics == {1: {"grad_norm": 0.5}}


def test_metrics_may_be_lines_of_json(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    (log / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/grad_norm": 0.5}) + "\n")
    assert read_run(log / "exp_001").metrics == {1: {"grad_norm": 0.5}}

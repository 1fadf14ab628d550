from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.trainers.token_logs import NO_NORMS
from tests.conftest import LOGS
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike
from tests.rollouts.readers.test_run_files import write_model
from tests.rollouts.test_event_file import record, scalar


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
    rows = [trace_row(prompt_idx=index // 2, prompt_tokens=[prompt]) for index, prompt in enumerate((1, 2, 2))]
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
    left = [{"rewards": [index / 4], "filtered_rewards": [float(index)], **rows[index]} for index in range(2)]
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

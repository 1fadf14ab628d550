"""open-instruct, NeMo-RL and prime-rl: logs with exact tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def trace_row(**cells: Any) -> dict[str, Any]:
    row = {"step": 1, "prompt_idx": 0, "prompt_tokens": [1], "response_tokens": [2], "reward": 1.0, "logprobs": None}
    return {**row, **cells}


def test_open_instruct_keeps_tokens_and_says_that_dead_groups_are_hidden() -> None:
    run = read_run(LOGS / "open_instruct")
    assert rewards_of(run) == {"3:0": (10.0, 0.0), "3:1": (0.0, 10.0), "4:0": (10.0, 0.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((1, 5), (9, 2), (-0.2, -0.01))
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
    assert run.source.missing == ()


def test_nemo_rl_with_dynamic_sampling_takes_the_trained_rewards_and_says_what_is_hidden(tmp_path: Path) -> None:
    row = json.loads((LOGS / "nemo_rl/exp_001/train_data_step1.jsonl").read_text().splitlines()[0])
    row |= {"filtered_rewards": [0.5], "sample_loss_mask": [0.0]}
    run = read_run(write_lines(tmp_path / "train_data_step7.jsonl", row))
    assert [(group.step, group.rewards) for group in run.groups] == [(7, (0.5,))]
    assert run.groups[0].rollouts[0].mask == (False, False)
    assert "Dynamic sampling was on" in run.source.missing[0]


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


def test_prime_rl_reads_everything_and_takes_advantages_from_what_was_trained_on() -> None:
    run = read_run(LOGS / "prime_rl")
    assert rewards_of(run) == {"3:g7": (1.5, 0.5), "3:g8": (0.5, 0.5)}
    trained, dropped = run.groups[0].rollouts[0], run.groups[1].rollouts[0]
    assert (trained.prompt_ids, trained.completion_ids, trained.mask) == ((5, 9, 7), (11, 2), (True, True))
    assert (trained.advantage, trained.token_advantages, dropped.advantage) == (0.5, (0.5, 0.5), None)
    assert trained.rewards == {"correct": 1.0, "short": 1.0}
    assert run.source.missing == ()


def test_prime_rl_effective_alone_is_a_lower_bound() -> None:
    run = read_run(LOGS / "prime_rl/rollouts/step_3/train/effective")
    assert rewards_of(run) == {"3:g7": (1.5, 0.5)}
    assert "lower bound" in run.source.missing[0]


def prime_row(**cells: Any) -> dict[str, Any]:
    row = json.loads((LOGS / "prime_rl/rollouts/step_3/train/all/traces.jsonl").read_text().splitlines()[0])
    return {**row, **cells}


def test_prime_rl_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    rows = [
        prime_row(),
        prime_row(run={"work": {"step": "3"}}),
        prime_row(group=None),
        prime_row(traces=[{**trace, "agent": {"trainable": False}}]),
        prime_row(ok=False, traces=[{**trace, "rewards": {}}]),
        prime_row(traces=[{**trace, "rewards": {"correct": {"score": None}}}]),
    ]
    run = read_run(write_lines(tmp_path / "traces.jsonl", *rows))
    assert rewards_of(run) == {"3:g7": (1.5, None, None)}
    assert run.groups[0].rollouts[1].status == "error"
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "group.id is missing": 1,
        "the episode has no trace of a trained agent": 1,
        "the reward is missing": 1,
        "the reward is null": 1,
    }


def test_prime_rl_agents_of_an_episode_are_groups_of_their_own(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[trace, trace])))
    assert list(rewards_of(run)) == ["3:g7/0", "3:g7/1"]
    assert "several trained agents" in run.source.inferred[0]


def test_prime_rl_traces_that_branch_lose_their_tokens_and_keep_their_reward(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    branching = {**trace, "nodes": [*trace["nodes"], trace["nodes"][1]]}
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[branching])))
    rollout = run.groups[0].rollouts[0]
    assert (rollout.reward, rollout.completion, rollout.completion_ids) == (1.5, "4", None)
    assert "branch into several sequences" in run.source.missing[0]


def test_prime_rl_token_export_has_tokens_and_says_that_rewards_are_elsewhere() -> None:
    run = read_run(LOGS / "prime_rl_tokens")
    assert [(group.step, group.rewards) for group in run.groups] == [(3, (None, None))]
    rollout = run.groups[0].rollouts[1]
    assert (rollout.completion_ids, rollout.advantage, rollout.logprobs) == ((12, 2), -0.5, (-0.1, -0.01))
    assert "has no rewards" in run.source.missing[0]


def test_prime_rl_token_export_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"step": 1, "token_ids": [1, 2], "loss_mask": [False, True], "advantages": [0.5, 0.5]}
    rows = [row, {**row, "step": None}, {**row, "loss_mask": [False, False]}]
    run = read_run(write_lines(tmp_path / "rank_0.jsonl", *rows))
    assert set_aside(run) == {"the step is not a whole number": 1, "no token of the row was sampled": 1}

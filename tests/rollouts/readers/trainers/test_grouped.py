import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import LOGS
from tests.rollouts.readers.lines import set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike, mutated

PATHS = ("atropos", "atropos/gsm8k.jsonl", "rl2", "rl2/train", "rl2/train/step2.jsonl", "trinity", "trinity/buffer")
PIPELINE_PATHS = ("pipeline_rl", "pipeline_rl/streams/actor/0/0/0.jsonl")
ATROPOS = {(0, 0): [(1.0, -1.0), (-1.0, 1.0)], (0, 1): [(1.0, 1.0)]}
"""(Step, prompt) -> rewards of its groups: prompts in the order in which they appear."""
PIPELINE_RL = {(0, 0): [(1.0, 0.0), (1.0, 1.0)], (0, 1): [(0.0, 0.0)]}
RL2 = {(1, 0): [(1.0, 0.0)], (1, 1): [(0.0, 0.0)], (2, 0): [(1.0, 1.0)], (2, 2): [(0.0, 1.0)]}
TRINITY = {(1, 0): [(1.0, 0.0)], (1, 1): [(0.0, 0.0)], (2, 0): [(1.0, 0.0)], (2, 1): [(1.0, 1.0)]}
OF_STEP_2 = {(2, 0): [(1.0, 1.0)], (2, 1): [(0.0, 1.0)]}


@pytest.mark.parametrize("rewards_only", [False, True])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *zip(PATHS, (ATROPOS, ATROPOS, RL2, RL2, OF_STEP_2, TRINITY, TRINITY), strict=True),
        *((path, PIPELINE_RL) for path in PIPELINE_PATHS),
    ],
)
def test_groups_are_those_of_the_trainer(path: str, expected: dict[Any, Any], rewards_only: bool) -> None:
    run = read_run(LOGS / path, rewards_only=rewards_only)
    prompts = list(dict.fromkeys(group.prompt_id for group in run.groups))
    found: dict[Any, Any] = {}
    for group in run.groups:
        found.setdefault((group.step, prompts.index(group.prompt_id)), []).append(group.rewards)
    assert (run.source.format, found) == (path.partition("/")[0].replace("_", "-"), expected)
    assert run.source.quarantined.num_rows == 0


@pytest.mark.parametrize(
    ("name", "prompt", "completion", "logprobs"),
    [
        ("atropos", "Think.\n2+2?", "4", (-0.5, -0.5)),
        ("pipeline_rl", "2+2=", "4", (-0.5, -0.5)),
        ("rl2", "2+2?", "0", (-0.25, -0.25)),
    ],
)
def test_a_group_keeps_its_texts_and_tokens(
    name: str, prompt: str, completion: str, logprobs: tuple[float, ...]
) -> None:
    rollout = read_run(LOGS / name).groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.logprobs) == (prompt, completion, logprobs)


def test_a_run_of_several_turns_counts_once_with_its_first_prompt_and_its_last_reward(tmp_path: Path) -> None:
    lines = (LOGS / "trinity/buffer/explorer_output.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[2:8]]
    for row in rows[:3]:
        row["reward"] = float(row["eid"]["step"] == 2)
    run = read_run(write_lines(tmp_path / "experiences.jsonl", *rows))
    assert [[(r.prompt, r.completion, r.reward) for r in group.rollouts] for group in run.groups] == [
        [("guess", "02", 1.0), ("guess", "12", 0.0)]
    ]


def test_a_rollout_of_several_texts_has_the_first_prompt_and_the_last_answer() -> None:
    group = read_run(LOGS / "pipeline_rl").groups[1]
    assert [(r.prompt, r.completion, r.completion_ids) for r in group.rollouts] == [
        ("guess:", "b", None),
        ("guess:", "d", None),
    ]


def test_texts_without_a_number_of_their_rollout_count_each(tmp_path: Path) -> None:
    text = (LOGS / "pipeline_rl/streams/actor/0/0/0.jsonl").read_text()
    (tmp_path / "0.jsonl").write_text(text.replace('"rollout_index"', '"index"'))
    assert [group.size for group in read_run(tmp_path).groups] == [2, 4, 2]


def test_runs_without_a_number_are_told_apart_by_their_turns(tmp_path: Path) -> None:
    lines = (LOGS / "trinity/buffer/explorer_output.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["eid"] |= {"run": 0, "step": row["eid"]["step"] + 1}
    run = read_run(write_lines(tmp_path / "experiences.jsonl", *rows))
    assert [group.rewards for group in run.groups] == [rewards for (rewards,) in TRINITY.values()]


@pytest.mark.parametrize("rewards_only", [False, True])
def test_experiences_before_the_pipeline_count_and_those_behind_it_alone_are_a_lower_bound(
    tmp_path: Path, rewards_only: bool
) -> None:
    text = (LOGS / "trinity/buffer/explorer_output.jsonl").read_text()
    for name in ("experience_buffer.jsonl", "explorer_output.jsonl"):
        (tmp_path / "buffer" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "buffer" / name).write_text(text)
    for path, is_bound in ((tmp_path, False), (tmp_path / "buffer/experience_buffer.jsonl", True)):
        run = read_run(path, rewards_only=rewards_only)
        assert ([group.size for group in run.groups], bool(run.source.filters)) == ([2] * 4, is_bound)


def test_what_cannot_be_used_is_set_aside(tmp_path: Path) -> None:
    row = json.loads((LOGS / "atropos/gsm8k.jsonl").read_text().splitlines()[0])
    rows = [row, row | {"masks": []}, row | {"scores": [1.0, None]}, row | {"masks": [[1], None]}]
    run = read_run(write_lines(tmp_path / "groups.jsonl", *rows))
    assert set_aside(run) == {"tokens, masks and scores are not lists of one length": 1, "the reward is null": 1}
    assert [rollout.completion_ids for rollout in run.groups[-1].rollouts] == [None, None]


def test_a_run_without_a_reward_or_a_batch_is_set_aside(tmp_path: Path) -> None:
    eid = {"batch": 1, "task": 0, "run": 0, "step": 0}
    rows = [{"eid": eid, "reward": 1.0}, {"eid": eid | {"run": 1}}, {"eid": eid | {"batch": "eval"}, "reward": 1.0}]
    run = read_run(write_lines(tmp_path / "experiences.jsonl", *rows))
    assert set_aside(run) == {"the reward is missing": 1, "the step is not a whole number": 1}


_NESTED = ("eid", "rollouts", "sample", "metrics", "metadata", "state_dicts", "tokens", "masks", "messages")


@pytest.mark.parametrize("path", ["atropos/gsm8k.jsonl", "trinity/buffer/explorer_output.jsonl"])
def test_damaged_logs_mean_the_same_in_columns_and_row_by_row(tmp_path: Path, path: str) -> None:
    rows = [json.loads(line) for line in (LOGS / path).read_text().splitlines()]
    for seed in range(20):
        (file := tmp_path / f"{seed}.jsonl").write_text("\n".join(mutated(rows, seed, nested=_NESTED)))
        assert_reduced_alike(file)


@pytest.mark.parametrize("path", ["rl2/train/step1.jsonl", "pipeline_rl/streams/actor/0/0/0.jsonl"])
def test_damaged_lists_mean_the_same_in_columns_and_row_by_row(tmp_path: Path, path: str) -> None:
    rows = [row for line in (LOGS / path).read_text().splitlines() for row in json.loads(line)]
    for seed in range(20):
        (file := tmp_path / str(seed) / Path(path).name).parent.mkdir()
        file.write_text("\n".join(f"[{line}]" for line in mutated(rows, seed, nested=_NESTED)))
        assert_reduced_alike(file)

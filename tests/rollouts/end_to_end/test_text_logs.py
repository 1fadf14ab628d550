"""rLLM, ART, the Tinker cookbook and RAGEN: logs with text, or with nothing but rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def test_rllm_groups_by_task_and_leaves_validation_out() -> None:
    run = read_run(LOGS / "rllm")
    assert rewards_of(run) == {"3:1f0c9a2b": (1.0, 0.0), "4:2a0c9a2b": (0.0, 0.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("2+2=?", "4", {"is_correct": 1.0})
    assert rollout.seconds == 2.0
    assert "equal tasks at one step merge" in run.source.inferred[0]


def episode(folder: Path, name: str, **cells: Any) -> None:
    trajectory = {"name": "solver", "reward": 1.0}
    row = {"training_step": 1, "task_hash": "t", "task": {"q": 1}, "trajectories": [trajectory], **cells}
    (folder / f"episode_{name}.json").write_text(json.dumps(row))


def test_rllm_trajectories_of_one_name_form_a_group(tmp_path: Path) -> None:
    for name in "ab":
        both = [{"name": who, "reward": 1.0} for who in ("solver", "judge")]
        episode(tmp_path, name, trajectories=both, timing={"llm_time": 1.0})
    run = read_run(tmp_path)
    assert rewards_of(run) == {"1:t/solver": (1.0, 1.0), "1:t/judge": (1.0, 1.0)}
    assert "several trajectories" in run.source.inferred[1]
    # Each trajectory would repeat the time of the whole episode.
    assert {rollout.seconds for group in run.groups for rollout in group.rollouts} == {None}


def test_rllm_episodes_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    episode(tmp_path, "a")
    episode(tmp_path, "b", training_step=None)
    episode(tmp_path, "c", task_hash="")
    episode(tmp_path, "d", trajectories=[])
    episode(tmp_path, "e", trajectories=[{}])
    run = read_run(tmp_path)
    assert rewards_of(run) == {"1:t": (1.0, None)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "task_hash is missing": 1,
        "the episode has no trajectory": 1,
        "the reward is missing": 1,
    }


def test_art_groups_by_index_within_the_step_of_the_file() -> None:
    run = read_run(LOGS / "art")
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.5, 0.5), "1:0": (0.0, 0.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("0?", "yes", {"won": 1.0})
    assert rollout.messages == ({"role": "user", "content": "0?"},)
    assert read_run(LOGS / "art/trajectories/val").steps == (1,)


def test_art_rows_without_a_group_are_set_aside(tmp_path: Path) -> None:
    rows = [{"group_index": index, "reward": 1.0, "messages": "", "metrics": "{"} for index in (0, None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "0003.parquet")
    run = read_run(tmp_path)
    assert rewards_of(run) == {"3:0": (1.0,)}
    assert set_aside(run) == {"group_index is missing": 1}


def test_tinker_summaries_hold_rewards_only() -> None:
    run = read_run(LOGS / "tinker")
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:0": (1.0, 0.0), "1:1": (1.0, 1.0)}
    assert len({group.prompt_id for group in run.groups}) == 4
    assert "remove_constant_reward_groups" in run.source.missing[0]


def test_tinker_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"iteration": 2, "group_idx": 0, "traj_idx": 0, "total_reward": 1.0}
    rows = [row, {**row, "iteration": "x"}, {**row, "group_idx": None}, {**row, "total_reward": [1.0]}]
    run = read_run(write_lines(tmp_path / "train_rollout_summaries.jsonl", *rows))
    assert rewards_of(run) == {"2:0": (1.0, None)}
    assert set_aside(run) == {
        "iteration is not a whole number": 1,
        "group_idx is not a whole number": 1,
        "the reward is a list, not a number": 1,
    }


def test_ragen_groups_by_the_metadata() -> None:
    run = read_run(LOGS / "ragen")
    assert rewards_of(run) == {"0": (1.5, -0.2), "1": (-0.2, -0.2)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("maze 0", "up\nwall\nleft", {"success": 1.0})
    assert "evaluation rollouts" in run.source.missing[0]


def test_ragen_rows_without_a_group_are_set_aside(tmp_path: Path) -> None:
    row = {"messages": [], "metadata": {"group_id": 3, "total_reward": 1.0}}
    run = read_run(write_lines(tmp_path / "val_rollouts_1.jsonl", row, {**row, "metadata": []}))
    assert set_aside(run) == {"metadata.group_id is missing": 1}

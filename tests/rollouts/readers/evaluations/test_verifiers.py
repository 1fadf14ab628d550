from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOG = REPOSITORY / "fixtures/logs/verifiers_eval/gsm8k--qwen3--single-turn--5f2c"


def episode(name: str = "x", **cells: Any) -> dict[str, Any]:
    row = json.loads((LOG / "traces.jsonl").read_text().splitlines()[0])
    return {**row, "traces": [{**row["traces"][0], "id": name}], **cells}


def read(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "traces.jsonl", *rows))


@pytest.mark.parametrize("path", [LOG, LOG / "traces.jsonl"])
def test_episodes_of_a_task_are_the_samples_of_a_prompt(path: Path) -> None:
    run = read_run(path)
    assert (run.source.format, run.steps) == ("verifiers", (0,))
    assert rewards_of(run) == {"gsm8k/a": (1.0, 0.0, 1.0), "gsm8k/b": (0.0, 0.0, 0.0)}
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards) == ("a?", "4", {"correct": 1.0, "length": 1.0})
    assert run.source.quarantined.num_rows == 0


def test_runs_of_several_policies_are_not_mixed(tmp_path: Path) -> None:
    for model in ("small", "large"):
        shutil.copytree(LOG, tmp_path / f"gsm8k--{model}")
    run = read_run(tmp_path / "*/traces.jsonl")
    assert [(group.group_id, group.prompt_id, group.size) for group in run.groups] == [
        (f"gsm8k--{model}/gsm8k/{task}", f"gsm8k/{task}", 3) for model in ("large", "small") for task in "ab"
    ]


def test_a_task_without_a_key_is_told_by_its_hash_or_its_data(tmp_path: Path) -> None:
    task = {"data": {"prompt": "q"}, "key": None}
    run = read(tmp_path, episode("1", task={**task, "hash": "h"}), episode("2", task=task), episode("3", task=task))
    assert [(group.group_id == "gsm8k/h", group.size) for group in run.groups] == [(True, 1), (False, 2)]


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    trace = episode()["traces"][0]
    rows = [
        episode("a"),
        episode("a"),
        episode("b", task={"key": None}),
        episode("c", task=None),
        episode("d", run={"type": "train", "work": {"step": 1}}),
        episode("e", traces=[]),
        episode("f", traces="none"),
        episode("g", traces=[{**trace, "rewards": {"correct": {"score": "high"}}}]),
        episode("h", traces=[{**trace, "rewards": {}, "id": None}], ok=False),
    ]
    run = read(tmp_path, *rows)
    assert rewards_of(run) == {"gsm8k/a": (1.0, None, None)}
    assert set_aside(run) == {
        "the row repeats an earlier one of the same sample": 1,
        "task.key, task.hash and task.data are missing": 2,
        "the episode is not of an evaluation": 2,
        "the episode has no trace of an agent": 1,
        "the reward is text": 1,
        "the reward is missing": 1,
    }


def test_several_agents_of_an_episode_are_said(tmp_path: Path) -> None:
    trace = episode()["traces"][0]
    traces = [{**trace, "id": name, "agent": {"name": name}} for name in ("solver", "critic")]
    run = read(tmp_path, episode(traces=traces))
    assert list(rewards_of(run)) == ["gsm8k/a/solver", "gsm8k/a/critic"]
    assert {group.prompt_id for group in run.groups} == {"gsm8k/a"}
    assert "several trained agents" in run.source.inferred[1]


def test_a_cut_line_is_set_aside_and_a_file_of_none_but_such_is_no_log(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "traces.jsonl", episode("a"), episode("b"))
    path.write_text(path.read_text()[:-9])
    assert set_aside(read_run(path)) == {"the last line is cut off": 1}
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match="has no usable rows"):
        read_run(path)

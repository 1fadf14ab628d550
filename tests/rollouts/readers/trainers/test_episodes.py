import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside
from tests.rollouts.readers.reduced import assert_same

LOGS = REPOSITORY / "fixtures/logs"
LOG = LOGS / "tunix"


@pytest.mark.parametrize("path", [LOG, LOG / "trajectories", f"{LOG}/trajectories/step*/*/*/metadata.json"])
def test_trajectories_of_a_prompt_at_a_step_are_a_group(path: Path | str) -> None:
    run = read_run(path)
    assert run.source.format == "tunix"
    assert rewards_of(run) == {"p0": (1.0, 0.0), "p1": (0.0, 0.0), "1:p0": (1.0, 1.0), "1:p2": (0.5, 1.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt, first.completion, first.completion_ids) == ("p0?", "answer 0", (3, 4))
    assert (first.status, second.status) == ("completed", "error")
    assert run.groups[2].rollouts[1].policy_versions == (0, 1)
    assert run.source.missing == ()


def test_a_log_without_tokens_says_so(tmp_path: Path) -> None:
    folder = shutil.copytree(LOG, tmp_path / "log")
    for file in folder.rglob("metadata.json"):
        cells = json.loads(file.read_text())
        file.write_text(json.dumps({name: cell for name, cell in cells.items() if "tokens" not in name}))
    run = read_run(folder)
    assert run.groups[0].rollouts[0].completion_ids is None
    assert "without token ids" in run.source.missing[0]


def episode(folder: Path, name: str, **cells: Any) -> None:
    trajectory = {"name": "solver", "reward": 1.0}
    row = {"training_step": 1, "task_hash": "t", "task": {"q": 1}, "trajectories": [trajectory], **cells}
    (folder / f"episode_{name}.json").write_text(json.dumps(row))


def test_rllm_groups_by_task_and_leaves_validation_out() -> None:
    run = read_run(LOGS / "rllm")
    assert rewards_of(run) == {"3:1f0c9a2b": (1.0, 0.0), "4:2a0c9a2b": (0.0, 0.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.prompt, rollout.completion, rollout.rewards) == ("2+2=?", "4", {"is_correct": 1.0})
    assert rollout.seconds == 2.0
    assert "equal tasks at one step merge" in run.source.inferred[0]


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


def test_rllm_a_number_beyond_all_floats_is_not_known(tmp_path: Path) -> None:
    episode(tmp_path, "a", is_correct=int("9" * 400))
    assert read_run(tmp_path).groups[0].rollouts[0].rewards == {"is_correct": None}


@pytest.mark.parametrize("strange", ["x", None, [1], [{}, {}], [{"name": 1, "reward": float("nan")}], [[]]])
def test_rllm_strange_trajectories_have_the_answers_of_the_row_reader(tmp_path: Path, strange: Any) -> None:
    for number in range(4):
        episode(tmp_path, str(number), task_hash=f"t{number % 2}")
    episode(tmp_path, "9", trajectories=strange, timing={"llm_time": 1.0})
    assert_same(tmp_path)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOG = REPOSITORY / "fixtures/logs/relax"


def row(index: Any = 0, **cells: Any) -> dict[str, Any]:
    cells = {"rollout_id": 3, "group_index": 0, "reward": 1.0, "prompt": "p", "response": "r", **cells}
    return {"sample_index": index, **cells}


@pytest.mark.parametrize("below", ["", "rollout_result", "rollout_result/train"])
def test_groups_of_every_step_without_the_evaluation(below: str) -> None:
    run = read_run(LOG / below)
    assert run.source.format == "relax"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0), "1:3": (0.0, 1.0)}
    assert [rollout.status for rollout in run.groups[1].rollouts] == ["completed", "truncated"]
    assert "lower bound" in run.source.missing[0]


def test_one_file() -> None:
    assert rewards_of(read_run(LOG / "rollout_result/train/1.jsonl")) == {"1:2": (1.0, 1.0), "1:3": (0.0, 1.0)}


def test_of_several_rewards_one_counts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "3.jsonl", row(0, reward={"score": 1.0, "acc": 0.0}), row(1, reward={"acc": 1.0}))
    assert rewards_of(read_run(path)) == {"3:0": (1.0, None)}
    named = read_run(path, ReadOptions(columns=ColumnNames(reward="acc")))
    assert rewards_of(named) == {"3:0": (0.0, 1.0)}


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        row(0),
        row(1, reward=None),
        row(2, reward=[1.0]),
        row(3, group_index=None),
        row(4, rollout_id="three"),
        {"rollout_id": 3},
        row(0, response="other"),
        row(5),
    ]
    path = write_lines(tmp_path / "3.jsonl", *rows)
    path.write_text(path.read_text() + "{")
    run = read_run(path)
    assert rewards_of(run) == {"3:0": (None, None, None, 1.0)}
    assert set_aside(run) == {
        "the reward is null": 1,
        "the reward is a list, not a number": 1,
        "group_index is not a whole number": 2,
        "the step is not a whole number": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "the last line is cut off": 1,
    }

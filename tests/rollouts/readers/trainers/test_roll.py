from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside, write_lines

LOG = REPOSITORY / "fixtures/logs/roll"


def line(**cells: Any) -> dict[str, Any]:
    columns = {"global_step": [3] * 4, "id": ["a", "a", "b", "b"], "prompt": ["p", "p", "q", "q"]}
    return {**columns, "responses": ["1", "2", "3", "4"], "scores": [1.0, 0.0, 0.0, 0.0], **cells}


def read(tmp_path: Path, *rows: Any) -> Run:
    return read_run(write_lines(tmp_path / "rollout_dump_data.step_3.jsonl", *rows))


def test_a_line_is_a_step_of_several_groups() -> None:
    run = read_run(LOG)
    assert [(group.step, group.rewards) for group in run.groups] == [
        (0, (1.0, 0.0)),
        (0, (0.0, 0.0)),
        (1, (1.0, 1.0)),
        (1, (0.0, 1.0)),
    ]
    assert "lower bound" in run.source.missing[0]
    one = read_run(LOG / "rollout_dump_data.step_1.jsonl")
    assert [group.rewards for group in one.groups] == [(1.0, 1.0), (0.0, 1.0)]


def test_prompts_of_one_id_stay_apart_and_rows_without_ids_go_by_their_prompts(tmp_path: Path) -> None:
    assert [group.size for group in read(tmp_path, line(id=["a"] * 4)).groups] == [2, 2]
    run = read(tmp_path, line(id=["a", None, "b", "b"]))
    assert [group.size for group in run.groups] == [1, 1, 2]
    assert "equal prompts merge" in run.source.inferred[0]
    bare = {name: cells for name, cells in line().items() if name not in ("id", "prompt")}
    with pytest.raises(InputError, match="neither an id nor a prompt"):
        read(tmp_path, bare)


def test_what_cannot_be_used_is_set_aside(tmp_path: Path) -> None:
    rows = [
        line(scores=[1.0, None, "x", float("inf")]),
        line(scores=[1.0]),
        line(scores=None),
        line(responses=[]),
        line(global_step=3),
        line(global_step=[3, "x", None, 1.5]),
    ]
    run = read(tmp_path, *rows)
    assert [group.rewards for group in run.groups] == [(1.0, None, 1.0), (None, None)]
    assert set_aside(run) == {
        "the reward is null": 1,
        "the reward is text": 1,
        "the reward is not finite": 1,
        "global_step, responses and scores are not lists of one length": 4,
        "the step is not a whole number": 3,
    }


def test_a_dump_whose_first_file_is_damaged_is_still_rolls(tmp_path: Path) -> None:
    write_lines(tmp_path / "rollout_dump_data.step_2.jsonl", line(prompt=None, id=None, global_step=None))
    run = read(tmp_path, line())
    assert len(read_run(tmp_path).groups) == len(run.groups) == 2
    assert read_run(tmp_path).source.format == "roll"


def test_a_dump_under_another_name_is_refused_and_not_taken_for_samples_of_one_prompt(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a list of several prompts each"):
        read_run(write_lines(tmp_path / "dump.jsonl", line()))

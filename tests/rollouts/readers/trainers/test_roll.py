from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside, write_lines
from tests.rollouts.readers.reduced import STRANGE, mutated
from tests.rollouts.readers.reduced import write_lines as write_damaged
from tests.rollouts.readers.same_table import assert_reduced_alike

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
    assert "equal prompts merge" in run.source.inferred[1]
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


def step_line(step: Any = 3, **cells: Any) -> dict[str, Any]:
    usual = {"global_step": [step] * 4, "id": ["a", "a", "b", "b"], "prompt": ["p", "p", "é", "é"]}
    usual |= {"domain": ["math"] * 4, "responses": ["1", "2", "3", "4"], "scores": [1.0, 0.0, 0.0, 0.5]}
    return usual | cells


def write(folder: Path, *files: Sequence[Any]) -> Path:
    for step, rows in enumerate(files):
        lines = [cells if isinstance(cells, str) else json.dumps(cells) for cells in rows]
        write_damaged(folder / f"rollout_dump_data.step_{step}.jsonl", lines, ended=step % 2 == 0)
    return folder


MESSAGES = [[{"role": "user", "content": "q"}]] * 2 + [[], None]
LINES = [
    *(step_line(step) for step in (2, 1, 1)),
    step_line(4, id=["a", None, "", "b"]),
    step_line(prompt=MESSAGES),
    {name: cells for name, cells in step_line(messages=MESSAGES).items() if name != "prompt"},
]


@pytest.mark.slow
def test_damaged_dumps_have_the_answers_of_the_row_reader(tmp_path: Path) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        files = [mutated(LINES, 2 * seed + at) for at in range(1 + seed % 2)]
        for lines in files:
            for at, found in enumerate(lines):
                if chance.random() < 0.5:
                    lines[at] = with_an_odd_element(found, chance)
        assert_reduced_alike(write(tmp_path / str(seed), *files))


def with_an_odd_element(found: str, chance: random.Random) -> str:
    try:
        cells = json.loads(found)
    except ValueError:
        return found
    lists = [value for value in cells.values() if isinstance(value, list) and value] if isinstance(cells, dict) else []
    for chosen in lists[:1] and [chance.choice(lists)]:
        chosen[chance.randrange(len(chosen))] = chance.choice(STRANGE)
    return json.dumps(cells)


def test_the_sample_of_the_format() -> None:
    run = assert_reduced_alike(REPOSITORY / "fixtures/logs/roll")
    assert isinstance(run, Run)
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


@pytest.mark.parametrize("key", sorted(step_line()))
def test_an_odd_element_has_the_answer_of_the_row_reader(tmp_path: Path, key: str) -> None:
    for at, value in enumerate(STRANGE):
        cells = step_line()
        cells[key] = [value, *cells[key][1:]]
        assert_reduced_alike(write(tmp_path / str(at), [step_line(), cells], [cells]))


@pytest.mark.parametrize(
    "files",
    [
        [[step_line(1)], [step_line(1)]],
        [[step_line(2)], [step_line(1)]],
        [[step_line(1, id=["c", "a", "b", "b"])], [step_line(1, domain=["code"] * 4), step_line(1)]],
        [[step_line(scores=[None] * 4)]],
        [[step_line(scores=[1.0, "x", float("nan"), 10**400])]],
        [[step_line(global_step=["3", 3.0, 1 << 60, True])]],
        [["{", step_line(responses=[]), step_line(), "null"], [""]],
        [[step_line(scores=[1.0]), step_line(id=None)]],
    ],
)
def test_lines_of_other_settings(tmp_path: Path, files: Sequence[Sequence[Any]]) -> None:
    assert_reduced_alike(write(tmp_path, *files))

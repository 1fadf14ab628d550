"""Reduced dumps of ROLL have the answers of the row reader."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.reduction import log
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.reduced import STRANGE, mutated, write_lines
from tests.rollouts.readers.same_table import assert_reduced_alike


@pytest.fixture(autouse=True)
def every_log_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MIN_ON_DISK", 0)


def line(step: Any = 3, **cells: Any) -> dict[str, Any]:
    usual = {"global_step": [step] * 4, "id": ["a", "a", "b", "b"], "prompt": ["p", "p", "é", "é"]}
    usual |= {"domain": ["math"] * 4, "responses": ["1", "2", "3", "4"], "scores": [1.0, 0.0, 0.0, 0.5]}
    return usual | cells


def write(folder: Path, *files: Sequence[Any]) -> Path:
    for step, rows in enumerate(files):
        lines = [cells if isinstance(cells, str) else json.dumps(cells) for cells in rows]
        write_lines(folder / f"rollout_dump_data.step_{step}.jsonl", lines, ended=step % 2 == 0)
    return folder


MESSAGES = [[{"role": "user", "content": "q"}]] * 2 + [[], None]
LINES = [
    *(line(step) for step in (2, 1, 1)),
    line(4, id=["a", None, "", "b"]),
    line(prompt=MESSAGES),
    {name: cells for name, cells in line(messages=MESSAGES).items() if name != "prompt"},
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


@pytest.mark.parametrize("key", sorted(line()))
def test_an_odd_element_has_the_answer_of_the_row_reader(tmp_path: Path, key: str) -> None:
    for at, value in enumerate(STRANGE):
        cells = line()
        cells[key] = [value, *cells[key][1:]]
        assert_reduced_alike(write(tmp_path / str(at), [line(), cells], [cells]))


@pytest.mark.parametrize(
    "files",
    [
        [[line(1)], [line(1)]],
        [[line(2)], [line(1)]],
        [[line(1, id=["c", "a", "b", "b"])], [line(1, domain=["code"] * 4), line(1)]],
        [[line(scores=[None] * 4)]],
        [[line(scores=[1.0, "x", float("nan"), 10**400])]],
        [[line(global_step=["3", 3.0, 1 << 60, True])]],
        [["{", line(responses=[]), line(), "null"], [""]],
        [[line(scores=[1.0]), line(id=None)]],
    ],
)
def test_lines_of_other_settings(tmp_path: Path, files: Sequence[Sequence[Any]]) -> None:
    assert_reduced_alike(write(tmp_path, *files))

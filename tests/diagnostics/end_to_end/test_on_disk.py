"""What is said of a large log, of which a step is in memory at a time, is what is said of it when all rows are held."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.__main__ import KINDS, run_of
from gradscope import measure_claims, measure_rank, measure_spike, replay_run, report_run
from gradscope.errors import GradscopeError
from gradscope.results.envelope import to_jsonable
from gradscope.rollouts.groups import GroupsOnDisk
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import lines, log

NUM_ROWS = 160
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "report": lambda path: report_run(path, gradients=False),
    "claims": lambda path: measure_claims(path, gradients=False),
    "replay": replay_run,
    "spike": lambda path: measure_spike(path, step=1),
    "rank": lambda path: measure_rank(path, rows="advantage", steps=[1]),
    "rank without weights": lambda path: measure_rank(path, steps=[1]),
}


def answer_of(command: Callable[[Path], Any], path: Path) -> Any:
    """The result as plain JSON, or why there is none."""
    try:
        return json.loads(json.dumps(to_jsonable(command(path))))
    except GradscopeError as error:
        return error.message, error.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generic", "verl"])
def test_every_command_says_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KINDS[name].make(tmp_path, run_of(NUM_ROWS, NUM_ROWS // 4), True)
    by_row = {title: answer_of(command, tmp_path) for title, command in COMMANDS.items()}
    monkeypatch.setattr(log, "MAX_WITH_TEXTS", 0)
    monkeypatch.setattr(lines, "BLOCK", 10_000)
    assert isinstance(read_run(tmp_path).groups, GroupsOnDisk)
    for title, command in COMMANDS.items():
        assert answer_of(command, tmp_path) == by_row[title], title

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import set_aside

LOG = REPOSITORY / "fixtures/logs/trackio_traces"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copy(LOG / "async-grpo.db", tmp_path / "project.db"))


def change(database: Path, statement: str, *cells: Any) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement, cells)
        connection.commit()


def test_traces_with_rewards_are_rollouts_with_the_metrics_beside_them() -> None:
    run = read_run(LOG)
    assert (run.source.format, run.source.kind, run.steps) == ("trackio", "rollouts", (1, 2))
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    first = run.groups[0].rollouts[0]
    assert (first.prompt, first.completion, first.rewards, first.advantage) == ("2+2?", "4", {"accuracy": 1.0}, 0.5)
    assert [run.metrics[step]["frac_reward_zero_std"] for step in (1, 2)] == [0.0, 0.5]


def test_of_several_runs_one_is_named(database: Path) -> None:
    change(database, "UPDATE traces SET run_name = 'other' WHERE step = 2")
    change(database, "DELETE FROM metrics")
    with pytest.raises(InputError, match="has traces of 2 runs: calm-sea-1, other"):
        read_run(database)
    run = read_run(database, ReadOptions(metric_run="other"))
    assert (run.steps, run.metrics) == ((2,), {})
    shutil.copy(database, database.with_name("second.db"))
    with pytest.raises(InputError, match="has traces of 2 projects"):
        read_run(database.parent)


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("metadata", b"{", "the trace is not JSON"),
        ("metadata", None, "the trace is not JSON"),
        ("metadata", json.dumps({"reward": 1.0}), "metadata.group_id is missing"),
        ("metadata", json.dumps({"group_id": 0}), "the reward is missing"),
        ("step", "soon", "step is not a whole number"),
    ],
)
def test_traces_that_cannot_be_used_are_set_aside(database: Path, column: str, cell: Any, reason: str) -> None:
    change(database, "ALTER TABLE traces RENAME TO strict")
    change(database, "CREATE TABLE traces AS SELECT * FROM strict")  # in which a cell may be null
    change(database, f"UPDATE traces SET {column} = ? WHERE trace_index = 0 AND step = 1", cell)
    assert set_aside(read_run(database)) == {reason: 1}


def test_a_database_without_rewards_in_its_traces_is_one_of_metrics(database: Path) -> None:
    change(database, "UPDATE traces SET metadata = ?", b"{}")
    run = read_run(database, metrics_alone=True)
    assert (run.source.kind, run.metrics[2]["frac_reward_zero_std"]) == ("metrics", 0.5)


def test_a_database_of_any_name_is_opened(tmp_path: Path) -> None:
    """Names of files are bytes: this one is no UTF-8, and has what a URI gives a meaning."""
    name = os.fsdecode(b"a\xff#%41.db")
    shutil.copyfile(LOG / "async-grpo.db", tmp_path / name)
    assert len(read_run(tmp_path / name).groups) == len(read_run(LOG).groups)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.diagnostics.logged.tokens import staleness
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOG = REPOSITORY / "fixtures/logs/areal"
ALL = {"0": (1.0, 0.0), "1": (0.0, 0.0), "10:2": (1.0, 1.0)}


def row(sample: Any = 0, **cells: Any) -> dict[str, Any]:
    cells = {"task_id": 7, "head_version": 3, "tail_version": 3, "reward": 1.0, "prompt": "p", **cells}
    return {"sample_idx": sample, "completion": f"c{sample}", **cells}


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("", ALL),
        ("rollout", ALL),
        ("rollout/0", {name: ALL[name] for name in ("0", "1")}),
        ("rollout/10/2.jsonl", {"10:2": ALL["10:2"]}),
        ("eval-rollout", {"10:0": (1.0,)}),
    ],
)
def test_a_task_is_a_group_at_the_version_that_finished_it(below: str, expected: dict[str, tuple[float, ...]]) -> None:
    run = read_run(LOG / below)
    assert (run.source.format, rewards_of(run)) == ("areal", expected)
    assert run.source.quarantined.num_rows == 0


def test_samples_of_several_versions_are_said() -> None:
    assert any("begun by an earlier version" in sentence for sentence in read_run(LOG).source.inferred)
    assert len(read_run(LOG / "rollout/0").source.inferred) == 1
    assert len(measure_degeneracy(LOG / "rollout/0").source.inferred) == 1  # from arrays, several files at a time


def test_lags_are_from_the_first_token_to_the_last() -> None:
    run = read_run(LOG)
    assert {rollout.policy_versions for rollout in run.groups_at(10)[0].rollouts} == {(9, 10)}
    (fresh, stale) = staleness(run, RESAMPLING).by_lag
    assert (fresh.lag, fresh.num_rollouts, stale.lag, stale.num_rollouts) == (0, 4, 1, 2)


@pytest.mark.parametrize("version", [4, -1, None, "x", [3], 2.5])
def test_a_version_that_none_can_have_begun_with_tells_no_lag(tmp_path: Path, version: Any) -> None:
    run = read_run(write_lines(tmp_path / "7.jsonl", row(0, head_version=version), row(1)))
    assert [rollout.policy_versions for rollout in run.groups[0].rollouts] == [None, (3, 3)]


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [
        row(0),
        row(1, reward=None),
        row(2, reward="1"),
        row(0, reward=0.0),
        row(3, tail_version=None),
        row(4, tail_version=[3]),
        row(5, task_id=None),
        row(None, head_version="x", prompt=None, completion=4),
    ]
    path = write_lines(tmp_path / "7.jsonl", *rows)
    path.write_text(path.read_text() + '{"task_id": 7, "samp')
    write_lines(tmp_path / "8.jsonl", [])
    run = read_run(tmp_path)
    assert rewards_of(run) == {"3:7": (None, None, None, 1.0)}
    assert set_aside(run) == {
        "the reward is null": 1,
        "the reward is text": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "tail_version is not a whole number": 2,
        "task_id is missing": 1,
        "the last line is cut off": 1,
        "the line is not a JSON object": 1,
    }

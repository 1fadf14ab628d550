"""The logs of ``benchmarks.scale``: gradscope, the bare scans and the loop find what was made up."""

from pathlib import Path

import duckdb
import pytest

from benchmarks.scale.__main__ import KINDS, run_of
from benchmarks.scale.kind import Kind
from benchmarks.scale.made_up import GROUP_SIZE, MadeUpRun
from benchmarks.scale.measure import Answer, answer_of, answer_of_peer
from gradscope import measure_degeneracy
from gradscope.rollouts.readers.reduction import log

pytestmark = pytest.mark.slow


def made_up(run: MadeUpRun) -> Answer:
    groups = [group for step in run.steps for group in run.groups(step)]
    num_dead = sum(len(set(group.rewards)) == 1 for group in groups)
    return Answer(len(groups), num_dead, len(groups) * GROUP_SIZE)


def scanned(command: list[str]) -> Answer:
    """What a command of DuckDB's would print, without the start of a process."""
    return Answer(*duckdb.connect().execute(command[-1]).fetchone()[:3])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_that_read_a_log_find_what_was_made_up(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With broken lines, of what has lines."""
    monkeypatch.setattr(log, "MAX_WITH_TEXTS", 0)
    run = run_of(1_280, kind.rows_a_step)
    kind.make(tmp_path, run, kind.has_lines)
    report = measure_degeneracy(tmp_path)
    share = report.frac_reward_zero_std.value
    assert share is not None
    answer = Answer(report.num_groups, round(share * report.num_groups), report.num_rollouts)
    assert answer == made_up(run)
    assert kind.name.startswith(report.source.format)
    assert (report.source.quarantined.num_rows > 0) == kind.has_lines
    if kind.scan:  # the loop over slime's pickles would import torch
        assert (answer_of_peer if kind.name == "generic" else scanned)(kind.peer(tmp_path)) == answer


def test_a_run_has_all_its_rows_however_they_are_cut() -> None:
    for num_rows, rows_a_step in ((160, None), (20_000, None), (20_000, 5_000), (8, None), (1_000_003, None)):
        run = run_of(num_rows, rows_a_step)
        assert sum(run.size(step) for step in run.steps) == num_rows // GROUP_SIZE * GROUP_SIZE


def test_the_command_says_the_same(tmp_path: Path) -> None:
    KINDS["verl"].make(tmp_path, run := run_of(160, None), False)
    assert answer_of(tmp_path) == made_up(run)

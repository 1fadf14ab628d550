from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradscope.diagnostics.degeneracy import course
from gradscope.diagnostics.degeneracy.course import EstimateOptions, KnownEstimates, course_of_run
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable
from tests.diagnostics.made_up_runs import group_of, run_of, said, two_steps


def test_logged_share_stands_beside_ours() -> None:
    metrics = {1: {"frac_reward_zero_std": 1.0}, 2: {"frac_reward_zero_std": 0.0}}
    report = degeneracy_of_run(two_steps(metrics=metrics))
    assert [row.logged for row in report.by_step] == [1.0, 0.0]
    assert "At 1 of 2 steps the trainer logged another frac_reward_zero_std, first at step 2" in said(report)


def test_logged_share_of_other_rollouts_is_not_compared() -> None:
    metrics = {1: {"frac_reward_zero_std": 1.0}, 2: {"frac_reward_zero_std": 0.0}}
    report = degeneracy_of_run(two_steps(metrics=metrics, notes={2: "a logging window of 3 steps"}))
    assert [row.logged for row in report.by_step] == [1.0, None]
    assert "the same at each of the 1 steps compared" in said(report)


def test_windows_pool_neighboring_steps() -> None:
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 26)]
    by_window = degeneracy_of_run(run_of(*groups), by="window").by_step
    assert [(row.step, row.last_step) for row in by_window][:3] == [(1, 3), (4, 6), (7, 9)]
    assert by_window[-1].last_step == 25
    assert len(by_window) == 10
    assert sum(row.num_groups for row in by_window) == 25
    assert by_window[0].frac_reward_zero_std.value == pytest.approx(2 / 3)  # steps 1 and 3 of 1, 2, 3


def test_a_window_is_not_compared_with_what_was_logged_at_a_step() -> None:
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in range(1, 22)]
    run = run_of(*groups, metrics={step: {"frac_reward_zero_std": 0.0} for step in range(1, 22)})
    assert all(row.logged == 0.0 for row in degeneracy_of_run(run).by_step)
    windows = degeneracy_of_run(run, by="window").by_step
    assert [row.logged for row in windows if row.step != row.last_step] == [None] * len(windows)


def test_short_runs_keep_their_steps_as_windows() -> None:
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in (1, 2)]
    by_window = degeneracy_of_run(run_of(*groups), by="window").by_step
    assert [(row.step, row.last_step) for row in by_window] == [(1, 1), (2, 2)]


def test_a_step_whose_groups_are_known_is_not_estimated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[int] = []
    original = EstimateOptions.estimates

    def spy(self: EstimateOptions, tables: Sequence[GroupTable]) -> list[DegeneracyEstimates]:
        estimated.extend(int(table.step[0]) for table in tables)
        return original(self, tables)

    monkeypatch.setattr(EstimateOptions, "estimates", spy)
    known: KnownEstimates = {}
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in (1, 2)]
    first = course_of_run(run_of(*groups), known=known)
    again = course_of_run(run_of(*groups, group_of([0.0, 1.0], step=2, prompt="p3")), known=known)
    assert estimated == [1, 2, 2]
    assert again[0] == first[0]
    assert again[1].num_groups == 2


def test_steps_are_those_of_the_log_however_many_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*(group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 8)))
    whole = course_of_run(run)
    monkeypatch.setattr(course, "_AT_ONCE", 3)
    assert course_of_run(run) == whole
    assert [row.step for row in whole] == list(range(1, 8))

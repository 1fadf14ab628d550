from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from gradscope.diagnostics.degeneracy import group_rewards as module
from gradscope.diagnostics.degeneracy.group_rewards import (
    By,
    DegeneracyOptions,
    EstimateCache,
    degeneracy_by_step,
    group_rewards,
)
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.degeneracy.reward_functions import judged_groups
from gradscope.errors import InputError, UsageError
from gradscope.metrics.outcomes.degeneracy import DegeneracyEstimates, GroupTable
from gradscope.render.registry import render_table
from gradscope.results.degeneracy import DegeneracyCourse, StepDegeneracy
from gradscope.results.source import Quarantine, QuarantineReason
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps
from tests.render.printing import printed


def test_one_reward_function_is_judged_alone_where_its_name_is_right() -> None:
    functions = {"accuracy": [1.0, 1.0], "format": [0.0, 1.0]}
    run = run_of(group_of([1.0, 1.1], step=1, functions=functions), metrics={1: {"frac_reward_zero_std": 0.0}})
    assert degeneracy_of_run(run).frac_reward_zero_std.value == 0.0
    accuracy = degeneracy_of_run(run, reward="accuracy")
    assert (accuracy.reward, accuracy.frac_all_pass.value, accuracy.by_step[0].logged) == ("accuracy", 1.0, None)
    run = run_of(group_of([1, 1], functions={"accuracy_reward": [1, 1]}))
    with pytest.raises(UsageError, match="has no reward function 'acuracy_reward'") as caught:
        degeneracy_of_run(run, reward="acuracy_reward")
    assert caught.value.hint == "Did you mean 'accuracy_reward'?"
    with pytest.raises(UsageError, match="has no reward function 'x'") as caught:
        degeneracy_of_run(run_of(group_of([1, 1])), reward="x")
    assert caught.value.hint == "It logs no reward per function."


def test_groups_that_cannot_be_judged_are_left_out_and_counted() -> None:
    run = run_of(group_of([1, 1]), group_of([0, None]), group_of([1]), group_of([0, 1]))
    report = degeneracy_of_run(run)
    assert (report.num_groups, report.frac_reward_zero_std.value) == (2, 0.5)
    assert "Groups left out: 1 with a single rollout and 1 with a missing reward." in report.findings
    with pytest.raises(
        InputError, match="has no group to judge: of 2 groups, 1 have one rollout and 1 lack a reward"
    ) as caught:
        degeneracy_of_run(run_of(group_of([1]), group_of([None, 1])))
    assert "Of one sample each: gradscope passk " in str(caught.value.hint)
    reason = QuarantineReason(reason="no number", num_rows=1, first="a:1")
    run = run_of(group_of([None, 1]))
    run = replace(run, source=replace(run.source, quarantined=Quarantine(num_rows=1, reasons=(reason,))))
    with pytest.raises(InputError, match=r"1 lack a reward\. 1 row set aside: no number\."):
        degeneracy_of_run(run)


@pytest.mark.parametrize(("version", "num_groups", "share"), [("1.16.0", 4, 0.5), ("1.5.0", 2, 0.5), (None, 2, 0.5)])
def test_trl_judges_a_group_by_its_scored_rollouts(version: str | None, num_groups: int, share: float) -> None:
    """TRL's ``nanstd`` of four groups; of one that has a single reward it is NaN, and not taken for zero."""
    groups = [[1, 1, 1], [0, 1, 1], [1, None, 1], [0, None, 1], [1, None, None]]
    run = run_of(*(group_of(rewards, step=1, prompt=str(at)) for at, rewards in enumerate(groups)))
    run = replace(
        run, source=replace(run.source, format="trl"), settings=TrainerSettings(values={"trl_version": version})
    )
    report = degeneracy_of_run(run)
    assert (report.num_groups, report.frac_reward_zero_std.value) == (num_groups, share)
    assert group_rewards(run).num_incomplete == 5 - num_groups
    assert np.isfinite(group_rewards(run).values).all()


def test_levels_are_the_different_rewards_of_a_log_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.diagnostics.degeneracy.group_rewards._AT_ONCE", 2)
    chosen = group_rewards(run_of(group_of([0.5, 0.0, 1.0], prompt="p"), group_of([1.0, 0.0], prompt="q")))
    assert chosen.levels.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("by", ["step", "window"])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_the_course_is_that_of_the_rows_with_intervals(by: By, threshold: float | None) -> None:
    rng = np.random.default_rng(0)
    groups = [
        group_of(list(rng.choice([0.0, 0.5, 1.0], 1 + index % 4, p=[0.6, 0.1, 0.3])), step=index % 23)
        for index in range(200)
    ]
    report = degeneracy_of_run(
        run_of(*groups, metrics={3: {"frac_reward_zero_std": 0.5}}),
        success_threshold=threshold,
        options=DegeneracyOptions(by=by),
    )
    course, of_rows = (
        {name: list(values) for name, values in asdict(one).items()}
        for one in (report.course, DegeneracyCourse.of(report.by_step))
    )
    shares = ["frac_reward_zero_std", "frac_all_pass", "frac_all_fail", "frac_tied", "pass_rate"]
    for name in shares if threshold else ("frac_reward_zero_std", "frac_tied"):
        assert course.pop(name) == pytest.approx(of_rows.pop(name))
    assert course == of_rows
    assert report.course.is_windows == (by == "window")


def test_an_answer_of_a_screen_resamples_no_step_and_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "group_rewards.degeneracy_by_step breakdowns.measure_advantage_mass dispersion_test estimate_gap_parts"
    for name in names.split():
        monkeypatch.setattr(f"gradscope.diagnostics.degeneracy.measure.{name}", None)
    report = degeneracy_of_run(two_steps())
    with monkeypatch.context() as fitting:
        fitting.setattr("gradscope.diagnostics.degeneracy.measure.fit_pass_rates", None)
        assert "groups" in printed(render_table(report))
    with pytest.raises(TypeError, match="NoneType"):
        report.by_step  # noqa: B018


def test_a_logged_share_is_compared_with_ours_on_the_same_rollouts() -> None:
    metrics = {1: {"frac_reward_zero_std": 1.0}, 2: {"frac_reward_zero_std": 0.0}}
    report = degeneracy_of_run(two_steps(metrics=metrics))
    assert [row.logged for row in report.by_step] == [1.0, 0.0]
    report = degeneracy_of_run(two_steps(metrics=metrics, notes={2: "a logging window of 3 steps"}))
    assert [row.logged for row in report.by_step] == [1.0, None]


def test_windows_pool_neighboring_steps_and_are_not_compared_with_a_logged_step() -> None:
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 26)]
    by_window = degeneracy_of_run(run_of(*groups), options=DegeneracyOptions(by="window")).by_step
    assert [(row.step, row.last_step) for row in by_window][:3] == [(1, 3), (4, 6), (7, 9)]
    assert by_window[-1].last_step == 25
    assert len(by_window) == 10
    assert sum(row.num_groups for row in by_window) == 25
    assert by_window[0].frac_reward_zero_std.value == pytest.approx(2 / 3)  # steps 1 and 3 of 1, 2, 3
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in range(1, 22)]
    run = run_of(*groups, metrics={step: {"frac_reward_zero_std": 0.0} for step in range(1, 22)})
    assert all(row.logged == 0.0 for row in degeneracy_of_run(run).by_step)
    windows = degeneracy_of_run(run, options=DegeneracyOptions(by="window")).by_step
    assert [row.logged for row in windows if row.step != row.last_step] == [None] * len(windows)
    groups = [group_of([1.0, 0.0], step=step, prompt=f"p{step}") for step in (1, 2)]
    by_window = degeneracy_of_run(run_of(*groups), options=DegeneracyOptions(by="window")).by_step
    assert [(row.step, row.last_step) for row in by_window] == [(1, 1), (2, 2)]


def by_step(run: Run, cache: EstimateCache | None = None) -> tuple[StepDegeneracy, ...]:
    return degeneracy_by_step(run, judged_groups(run)[1], None, DegeneracyOptions(), cache)


def test_a_step_whose_groups_are_known_is_not_estimated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[int] = []
    original = DegeneracyOptions.estimates

    def spy(self: DegeneracyOptions, tables: Sequence[GroupTable]) -> list[DegeneracyEstimates]:
        estimated.extend(int(table.step[0]) for table in tables)
        return original(self, tables)

    monkeypatch.setattr(DegeneracyOptions, "estimates", spy)
    defined: EstimateCache = {}
    groups = [group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in (1, 2)]
    first = by_step(run_of(*groups), defined)
    again = by_step(run_of(*groups, group_of([0.0, 1.0], step=2, prompt="p3")), defined)
    assert estimated == [1, 2, 2]
    assert again[0] == first[0]
    assert again[1].num_groups == 2


def test_steps_are_those_of_the_log_however_many_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(*(group_of([1.0, step % 2], step=step, prompt=f"p{step}") for step in range(1, 8)))
    full = by_step(run)
    monkeypatch.setattr(module, "_STEPS_AT_ONCE", 3)
    assert by_step(run) == full
    assert [row.step for row in full] == list(range(1, 8))


@pytest.mark.parametrize(("field", "value"), [("by", "epoch"), ("base_pass_rate", "steps")])
def test_a_word_that_is_no_option_is_refused(field: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"There is no {field}='{value}'"):
        DegeneracyOptions(**{field: value})

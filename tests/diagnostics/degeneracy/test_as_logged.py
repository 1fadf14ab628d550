from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.logged.as_logged import NO_ROLLOUTS
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import run_of


def metrics_alone(shares: dict[int, float], **more: float) -> Run:
    run = run_of(metrics={step: {"frac_reward_zero_std": share, **more} for step, share in shares.items()})
    return replace(run, source=replace(run.source, kind="metrics", missing=("log rollouts",)))


def test_shares_are_as_logged_without_an_interval() -> None:
    report = degeneracy_of_run(metrics_alone({1: 0.5, 2: 1.0}, frac_all_pass=0.25))
    assert (report.frac_reward_zero_std, report.frac_all_pass.value) == (Estimate.exact(0.75, num_units=2), 0.25)
    assert [(row.step, row.frac_reward_zero_std.value, row.frac_all_pass.value) for row in report.by_step] == [
        (1, 0.5, 0.25),
        (2, 1.0, 0.25),
    ]
    assert all(row.frac_reward_zero_std.interval is None for row in report.by_step)
    assert report.findings[0].startswith("75.0 % of a step's groups gave no gradient")
    assert [one.name for one in report.metrics] == ["frac_reward_zero_std", "frac_all_pass"]


def test_what_needs_rollouts_is_undefined_with_that_reason() -> None:
    report = degeneracy_of_run(metrics_alone({1: 0.5}), group_sizes=[4], target_degeneracy=0.2)
    skipped = {"frac_reward_zero_std", "frac_set_aside"}
    estimates = [
        (field.name, value)
        for record in (report, report.starvation, report.pass_rates, report.gap_decomposition, report.by_group_size[0])
        for field in fields(record)
        if isinstance(value := getattr(record, field.name), Estimate) and field.name not in skipped
    ]
    assert len(estimates) > 20
    assert {value.undefined for _, value in estimates} == {NO_ROLLOUTS}
    assert (report.num_groups, report.num_rollouts, report.by_group_size[0].group_size) == (0, 0, 4)
    assert report.target is not None
    assert report.target.plans == ()


def test_windows_join_neighbors_and_a_nan_stays_one() -> None:
    report = degeneracy_of_run(metrics_alone({step: step / 20 for step in range(1, 21)}), by="window")
    assert [(row.step, row.last_step) for row in report.by_step[:2]] == [(1, 2), (3, 4)]
    assert report.by_step[0].frac_reward_zero_std.value == pytest.approx(0.075)
    broken = degeneracy_of_run(metrics_alone({1: 0.5, 2: math.nan}))
    assert broken.by_step[1].frac_reward_zero_std.undefined == "the trainer logged NaN"
    assert broken.frac_reward_zero_std.undefined == "the trainer logged NaN at step 2"


def test_metrics_without_the_share_say_so() -> None:
    run = metrics_alone({1: 0.5})
    report = degeneracy_of_run(replace(run, metrics={1: {"loss": 0.5}}))
    assert report.frac_reward_zero_std.undefined == f"{NO_ROLLOUTS}, and none of these is that share"
    assert report.by_step == ()
    assert report.findings[0].startswith("These metrics do not tell")


def test_one_reward_function_needs_rollouts() -> None:
    with pytest.raises(InputError, match="no share of groups by reward function") as caught:
        degeneracy_of_run(metrics_alone({1: 0.5}), reward="format")
    assert caught.value.hint == "log rollouts"

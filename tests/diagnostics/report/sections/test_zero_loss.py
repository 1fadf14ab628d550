from __future__ import annotations

import math

import pytest

from gradscope.diagnostics.report.sections.zero_loss import zero_loss_section
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of

LIVE, DEAD = [1, 0], [1, 1]


@pytest.mark.parametrize(
    ("rewards", "metrics", "kind"),
    [
        (LIVE, {"grad_norm": 0.5, "loss": 0.1}, "learning"),
        (LIVE, {"grad_norm": 0.5, "loss": 1e-7}, "on-policy"),
        (LIVE, {"grad_norm": 0.5}, "learning"),
        (LIVE, {"grad_norm": 0.0, "loss": 0.0}, "suspect"),
        (DEAD, {"grad_norm": 0.0, "loss": 0.0}, "dead batch"),
        (DEAD, {"grad_norm": 0.5, "loss": 0.0}, "other terms"),
        (LIVE, {"grad_norm": math.nan, "loss": 0.1}, "not finite"),
        (LIVE, {"grad_norm": math.inf}, "not finite"),
        (DEAD, {"grad_norm": 0.0, "loss": math.nan}, "not finite"),
    ],
)
def test_a_step_is_of_one_kind(rewards: list[float], metrics: dict[str, float], kind: str) -> None:
    section = zero_loss_section(inputs_of(run_of(group_of(rewards, step=3), metrics={3: metrics})))
    assert section.tables[0].rows[0][-1] == kind


def test_findings_count_kinds_and_name_the_first_step() -> None:
    groups = [group_of(rewards, step=step) for step, rewards in ((1, LIVE), (2, DEAD), (3, LIVE), (4, LIVE))]
    metrics = {1: {"grad_norm": 0.5}, 2: {"grad_norm": 0.0}, 3: {"grad_norm": 0.0}, 4: {"grad_norm": 0.4, "loss": 0.0}}
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=metrics)))
    suspect, dead, good, on_policy = section.findings
    assert good == "2 of 4 steps have a gradient from live groups."
    assert suspect.startswith("1 of 4 steps (first: step 3): no gradient although a group has unequal rewards")
    assert dead.startswith("1 of 4 steps (first: step 2): no gradient, and none was due")
    assert on_policy.startswith("1 of 4 steps (first: step 4): loss near zero with a gradient: healthy")
    assert section.command == "gradscope replay made-up"
    assert section.next_step.startswith("Look at a suspect step")
    assert [chart.series[0].values for chart in section.charts] == [(0.5, 0.0, 0.0, 0.4), (None, None, None, 0.0)]


def test_healthy_steps_need_no_replay() -> None:
    section = zero_loss_section(inputs_of(run_of(group_of(LIVE, step=1), metrics={1: {"grad_norm": 0.5}})))
    assert (section.command, section.next_step.split(":")[0]) == ("", "Nothing to do here")
    dead = zero_loss_section(inputs_of(run_of(group_of(DEAD, step=1), metrics={1: {"grad_norm": 0.0}})))
    assert dead.next_step.startswith("Steps without a live group cost rollouts and teach nothing")


def test_a_norm_that_belongs_to_several_steps_is_not_judged() -> None:
    run = run_of(group_of(LIVE, step=1), metrics={1: {"grad_norm": 0.5}}, notes={1: "two updates in one"})
    assert str(zero_loss_section(inputs_of(run)).missing).startswith("The log has no grad_norm that belongs to one")


def test_a_norm_that_is_not_finite_comes_first_and_is_drawn() -> None:
    groups = [group_of(LIVE, step=step) for step in (1, 2, 3)]
    metrics = {1: {"grad_norm": 0.5}, 2: {"grad_norm": math.nan}, 3: {"grad_norm": 0.0}}
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=metrics)))
    assert section.findings[0].startswith("1 of 3 steps (first: step 2): the trainer logged NaN or infinity")
    assert section.next_step.startswith("Look at the first step that is not finite")
    assert str(section.charts[0].series[0].values) == "(0.5, nan, 0.0)"


def course(**others: float) -> dict[int, dict[str, float]]:
    values = {step: {"grad_norm": 1.0 + 0.1 * (step % 4)} for step in range(1, 21)}
    values[7]["grad_norm"] = others.pop("at_seven", 9.0)
    values[9].update(others)
    return values


def test_a_step_that_stands_out_is_named_with_the_command_that_takes_it_apart() -> None:
    groups = [group_of(LIVE, step=step) for step in range(1, 21)]
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=course())))
    assert section.findings[-1].startswith("Step 7 stands out: grad_norm 9, 8.18 times the 1.1 of the 19 steps around")
    assert section.command == "gradscope spike made-up"
    suspect = zero_loss_section(inputs_of(run_of(*groups, metrics=course(grad_norm=0.0))))
    assert suspect.findings[-1].startswith("Step 7 stands out")
    assert suspect.command == "gradscope replay made-up"


@pytest.mark.parametrize("metrics", [course(at_seven=1.2), course(grad_norm=math.nan), course(at_seven=1.2, loss=9e9)])
def test_where_nothing_stands_out_or_a_number_is_none_nothing_more_is_said(metrics: dict) -> None:
    groups = [group_of(LIVE, step=step) for step in range(1, 21)]
    section = zero_loss_section(inputs_of(run_of(*groups, metrics=metrics)))
    assert not any("stand" in finding or "broken" in finding for finding in section.findings)
    assert section.command == ""

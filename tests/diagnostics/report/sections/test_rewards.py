from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.sections.rewards import rewards_section
from gradscope.results.report import ReportSection
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of

ACCURACY, FORMAT = [2.0, 0.0], [0.0, 1.0]
BY_ARGUMENTS = {"scale_rewards": "none"}


def section_of(*groups: RolloutGroup, settings: Mapping[str, Any] = BY_ARGUMENTS) -> ReportSection:
    run = run_of(*groups, settings=dict(settings))
    return rewards_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))


def test_a_function_that_pulls_the_other_way_has_a_negative_share() -> None:
    """The sum differs by 1 within a group, accuracy by 2 and format by -1: shares of 2 and -1."""
    section = section_of(
        *(group_of([2.0, 1.0], prompt=f"p{n}", functions={"acc": ACCURACY, "form": FORMAT}) for n in range(6))
    )
    rows = {row[0]: row for row in section.tables[0].rows}
    assert (rows["acc"][3].value, rows["acc"][4].value) == (pytest.approx(2.0), pytest.approx(2.0))
    assert rows["form"][3].value == pytest.approx(-1.0)
    assert section.findings[0].startswith("'acc' makes 200.0 %")
    assert section.findings[0].endswith('of the squared advantage, by the advantages of scale_rewards="none".')
    assert section.tables[1].rows[0][2].value == pytest.approx(-1.0)
    assert section.command == "gradscope degeneracy made-up --show rewards"
    assert section.next_step.startswith("Whether side rewards decide groups is undefined: ")


def test_weights_that_are_not_known_are_said() -> None:
    groups = [group_of([6.0, 0.5], prompt=f"p{n}", functions={"acc": ACCURACY, "form": [1, 0]}) for n in range(6)]
    assert section_of(*groups).findings[0] == (
        "What each makes is not known: the weights of the functions are not known."
    )


def test_functions_that_never_differ_and_those_beside_the_reward_are_named() -> None:
    functions = {"acc": [1, 0, 2], "form": [1, 1, 1], "turns": [3, 4, 1]}
    sole = [group_of([2.0, 1.0, 3.0], prompt=f"p{n}", functions=functions) for n in range(9)]
    section = section_of(*sole)
    assert "'form' is tied in every group: it adds no gradient." in section.findings
    assert "Logged beside the reward and no part of it: turns." in section.findings
    assert section.severity == "look"


def test_a_conflict_is_a_problem_with_its_remedy() -> None:
    functions = {"acc": [1, 1], "short": [-0.5, -0.25]}
    section = section_of(*(group_of([0.5, 0.75], prompt=f"p{n}", functions=functions) for n in range(20)))
    assert section.severity == "problem"
    assert section.headline.startswith("'acc' is tied in 100.0 %")
    assert any(finding.startswith("'short' alone decides 100.0 %") for finding in section.findings)
    assert section.next_step == "Give 'short' no weight where 'acc' is tied."


def test_a_function_that_alone_differs_is_counted() -> None:
    functions = {"acc": [1, 0], "short": [0.5, 0.5]}
    section = section_of(*(group_of([1.5, 0.5], prompt=f"p{n}", functions=functions) for n in range(3)))
    assert "'acc' alone differs in 3 of 3 groups." in section.findings
    assert section.next_step.startswith("If one makes more of the gradient than it should")


def test_a_single_function_makes_everything() -> None:
    groups = [group_of([1.0, reward], prompt=str(reward), functions={"acc": [1.0, reward]}) for reward in (0.0, 1.0)]
    assert section_of(*groups).findings == ("There is one reward function, 'acc': it makes all of the advantage.",)


def test_means_are_drawn_over_several_steps() -> None:
    functions = ({"acc": [step, 0.0], "form": [0.0, 1.0]} for step in (1, 2))
    groups = [group_of([step + 1.0, 1.0], step=step, functions=next(functions)) for step in (1, 2)]
    (chart,) = section_of(*groups).charts
    assert chart.series[0].values == (0.5, 1.0)
    assert section_of(groups[0]).charts == ()


def test_a_log_without_rewards_by_function_says_what_it_lacks() -> None:
    assert str(section_of(group_of([1.0, 0.0])).missing).startswith("The log has no reward per function.")
    assert "It was not read" in str(rewards_section(inputs_of(run_of(group_of([1.0, 0.0])))).missing)

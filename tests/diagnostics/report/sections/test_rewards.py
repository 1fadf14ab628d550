from __future__ import annotations

import pytest

from gradscope.diagnostics.report.sections.rewards import rewards_section
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of

ACCURACY, FORMAT = [2.0, 0.0], [0.0, 1.0]
GROUPS = [group_of([2.0, 1.0], prompt=f"p{n}", functions={"acc": ACCURACY, "form": FORMAT}) for n in range(6)]


def test_a_function_that_pulls_the_other_way_has_a_negative_share() -> None:
    """The sum differs by 1 within a group, accuracy by 2 and format by -1: shares of 2 and -1."""
    section = rewards_section(inputs_of(run_of(*GROUPS, settings={"reward_weights": [1.0, 1.0]})))
    rows = {row[0]: row for row in section.tables[0].rows}
    assert rows["acc"][3].value == pytest.approx(2.0)
    assert rows["form"][3].value == pytest.approx(-1.0)
    assert section.findings[0].startswith("acc makes 200.0 %")
    assert section.findings[0].endswith("of what differs within groups, over 6 groups.")
    assert section.command == "gradscope degeneracy made-up --reward acc"


def test_weights_that_are_not_known_are_said() -> None:
    groups = [group_of([3.0, 0.0], prompt=f"p{n}", functions={"acc": ACCURACY, "form": [1, 0]}) for n in range(6)]
    assert len(rewards_section(inputs_of(run_of(*groups))).findings) == 1
    doubled = [group_of([6.0, 0.0], prompt=f"p{n}", functions={"acc": ACCURACY, "form": [1, 0]}) for n in range(6)]
    last = rewards_section(inputs_of(run_of(*doubled))).findings[-1]
    assert last == "The shares add up to 50.0 %: the weights of the functions are not known."
    weighed = run_of(*doubled, settings={"reward_weights": [1.0, 1.0]})
    last = rewards_section(inputs_of(weighed)).findings[-1]
    assert last == "The shares add up to 50.0 %: the scalar reward is not their weighted sum."


def test_ties_are_counted_by_function() -> None:
    sole = [group_of([1.0, 0.0], prompt=f"p{n}", functions={"acc": [1, 0], "form": [1, 1]}) for n in range(3)]
    section = rewards_section(inputs_of(run_of(*sole)))
    assert "acc alone keeps 3 of 3 groups alive: there, every other function is tied." in section.findings
    assert "form gives every rollout of every group the same: it adds no signal." in section.findings
    assert [row[4:] for row in section.tables[0].rows] == [(0.0, 3), (1.0, 0)]


def test_a_single_function_makes_everything() -> None:
    groups = [group_of([1.0, reward], prompt=str(reward), functions={"acc": [1.0, reward]}) for reward in (0.0, 1.0)]
    section = rewards_section(inputs_of(run_of(*groups)))
    assert section.findings == (
        "There is one reward function, acc: it makes all of the advantage and ties 50.0 % of groups.",
    )
    assert section.next_step == "It ties 50.0 % of groups: partial credit or a second function would untie some."


def test_means_are_drawn_over_several_steps() -> None:
    groups = [group_of([1.0, 0.0], step=step, functions={"acc": [step, 0.0]}) for step in (1, 2)]
    (chart,) = rewards_section(inputs_of(run_of(*groups))).charts
    assert chart.series[0].values == (0.5, 1.0)
    assert rewards_section(inputs_of(run_of(groups[0]))).charts == ()


@pytest.mark.parametrize(
    ("functions", "reason"),
    [({}, "The log has no reward per function."), ({"acc": [1.0, None]}, "No group has all rewards of all functions.")],
)
def test_a_log_without_whole_rewards_says_what_it_lacks(functions: dict[str, list[float]], reason: str) -> None:
    missing = rewards_section(inputs_of(run_of(group_of([1.0, 0.0], functions=functions)))).missing
    assert str(missing).startswith(reason)

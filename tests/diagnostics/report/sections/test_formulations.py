from __future__ import annotations

import pytest

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS
from gradscope.diagnostics.report.sections.formulations import formulations_section
from gradscope.estimate import Estimate
from gradscope.results.report import Cell
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of

RUN = run_of(group_of([1, 0]))
ROWS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
"""The first group has two orthogonal rows and unequal rewards; the second group is dead."""


def rows_of(**parts: object) -> dict[Cell, tuple[Cell, ...]]:
    logged = {"rewards": [1, 0, 1, 1], "advantages": [1, -1, 0, 0]}
    gram = gram_of(ROWS, ["a", "a", "b", "b"], **{**logged, **parts})
    return {row[0]: row for row in formulations_section(inputs_of(RUN, grams=[gram])).tables[0].rows}


def test_every_formulation_has_its_row_after_the_logged_one() -> None:
    assert list(rows_of()) == ["logged", *FORMULATIONS, *GRAM_FORMULATIONS]


def test_numbers_are_those_of_the_advantages() -> None:
    """dr_grpo gives (1/2, -1/2, 0, 0): half the logged update, over two orthogonal rows; one group of two is dead."""
    _, norm, cosine, rank, _, scores, dead = rows_of()["dr_grpo"]
    assert norm.value == pytest.approx(0.5 * 2**0.5)
    assert cosine.value == pytest.approx(1.0)
    assert rank.value == scores.value == pytest.approx(2.0)
    assert dead.value == 0.5


def test_a_formulation_without_a_baseline_keeps_the_dead_group() -> None:
    """reinforce weighs by the reward, (1, 0, 1, 1): it sums to (1, 0, 2), against the logged (1, -1, 0)."""
    _, norm, cosine, *_, dead = rows_of()["reinforce"]
    assert norm.value == pytest.approx(5**0.5)
    assert cosine.value == pytest.approx(1 / (5**0.5 * 2**0.5))
    assert dead.value == 0.0


def test_each_step_says_how_far_groups_agree() -> None:
    rows = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    gram = gram_of(rows, ["a", "b", "c", "d"], rewards=[1, 0, 1, 1], advantages=[1, 1, 1, 0])
    table = formulations_section(inputs_of(RUN, grams=[gram])).tables[1]
    ((step, cosine, ratio, critical),) = table.rows
    assert [column.title for column in table.columns][1:] == [
        "cosine of groups",
        "signal to noise",
        "critical batch size",
    ]
    assert step == gram.step
    assert cosine.value == pytest.approx(1 / 3)  # of a, b and c: 1, 0 and 0
    assert ratio.num_units == 4
    assert "the signal may be zero" in critical.undefined
    gram.advantages = None  # as where they differ by token: the rows are weighed already
    assert formulations_section(inputs_of(RUN, grams=[gram])).tables[1].rows[0][1:3] == (cosine, ratio)


def test_each_kind_of_group_says_what_it_gives() -> None:
    gram = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[1, -1, 0, 0])
    table = formulations_section(inputs_of(RUN, grams=[gram])).tables[-1]
    rows = {row[:2]: row[2:] for row in table.rows}
    assert ("grpo", "all-pass") not in rows
    number, norm, *_ = rows["reinforce", "all-pass"]  # two rows along one axis
    assert (number, norm.value) == (1, pytest.approx(2.0))
    fractions = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[0.5, 0, 1, 1], advantages=[1, -1, 0, 0])
    assert len(formulations_section(inputs_of(RUN, grams=[fractions])).tables) == 2


def test_prompts_that_work_against_each_other_are_told() -> None:
    """Each group's right answer lies across the gradients of the two others, one of which pulls away from it."""
    rows = [[2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    rewards = [1, 0, 1, 0, 1, 0]
    gram = gram_of(rows, list("aabbcc"), rewards=rewards, advantages=[1, -1] * 3)
    table = formulations_section(inputs_of(RUN, grams=[gram])).tables[-1]
    assert [column.title for column in table.columns] == ["advantage", "pairs that hurt", "cosine", "transfer"]
    found = {row[0]: row[1:] for row in table.rows}
    hurt, _, transfer = found["logged"]
    assert hurt.value == pytest.approx(2 / 6)  # a and b
    assert transfer.value == pytest.approx(2 * (-1 + 4 + 1) / (5 + 2 + 5))
    assert found["sign"][0] == hurt  # the same advantages
    assert {"grpo", "dr_grpo", "rloo"} <= set(found)


def test_nearest_and_farthest_formulation_are_named() -> None:
    gram = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[1, -1, 0, 0])
    (finding,) = formulations_section(inputs_of(RUN, grams=[gram])).findings
    assert finding.startswith("On the same rollouts of 1 step, ")
    assert finding.endswith("nearest to it (1.000).")


def test_a_formulation_that_needs_other_rewards_says_so_in_every_number() -> None:
    rows = rows_of(rewards=[1, 0, 0.5, 0.5])
    assert len({*rows["sign"][1:], *rows["positive_only"][1:]}) == 1  # one footnote for all of them
    assert isinstance(rows["sign"][1], Estimate)
    assert rows["sign"][1].undefined
    assert rows["dr_grpo"][1].value == pytest.approx(0.5 * 2**0.5)


def test_without_logged_advantages_there_is_no_cosine() -> None:
    rows = rows_of(advantages=[1, -1, 0, 0])
    assert rows["logged"][2].value == pytest.approx(1.0)
    assert formulations_section(inputs_of(RUN)).missing == f"{NOT_READ.reason} {NOT_READ.hint}"


def test_formulations_that_are_the_same_update_are_named() -> None:
    gram = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[1, -1, 0, 0])
    advice = formulations_section(inputs_of(RUN, grams=[gram])).next_step
    same, other = advice.split(". Farthest from it, and worth a run: ")
    assert same.startswith("The logged update at another step size (cosine from 0.99 on): ")
    assert "dr_grpo" in same
    assert len(other.split(", ")) == 3
    unlogged = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[0, 0, 0, 0])
    assert formulations_section(inputs_of(RUN, grams=[unlogged])).next_step.startswith("Log advantages")

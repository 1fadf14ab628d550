"""Ranks that are known: orthogonal rows span as many directions as they are, equal ones span one."""

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.advantages.registry import FORMULATIONS, GRAM_FORMULATIONS
from gradscope.diagnostics.report.sections.gradient import (
    contributions_section,
    directions_answer,
    formulations_section,
    rank_points,
    rank_section,
)
from gradscope.diagnostics.report.sections.inputs import TEXT_LIMIT
from gradscope.estimate import Estimate
from gradscope.results.report import Cell
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of

SIZE, GROUPS = 4, 4


def gram(rows: np.ndarray, *, step: int = 1, dead: int = 0, **parts: object) -> object:
    """Four groups of four, each with these rows; the last ones may be dead."""
    advantages = ([1.0, -1.0, 1.0, -1.0] * (GROUPS - dead)) + [0.0] * SIZE * dead
    names = [f"{step}/{name}" for name in "abcd" for _ in range(SIZE)]
    rewards = [1, 0, 1, 0] * GROUPS
    return gram_of(np.tile(rows, (GROUPS, 1)), names, step=step, rewards=rewards, advantages=advantages, **parts)


def section_of(*grams: object):
    return rank_section(inputs_of(run_of(group_of([1, 0, 1, 0], step=1)), grams=grams, curve=rank_points(grams)))


ORTHOGONAL, EQUAL = np.eye(SIZE, 512), np.tile(np.eye(1, 512), (SIZE, 1))


@pytest.mark.parametrize(
    ("rows", "rank", "severity", "advice"),
    [(ORTHOGONAL, 4.0, "fine", "Nothing to do"), (EQUAL, 1.0, "look", "pull nearly the same way")],
)
def test_the_rank_of_known_rows(rows: np.ndarray, rank: float, severity: str, advice: str) -> None:
    section = section_of(gram(rows), gram(rows, step=2))
    (table,), (chart,) = section.tables, section.charts
    assert [row[2].value for row in table.rows] == pytest.approx([rank, rank], abs=1e-6)
    assert [row[3] for row in table.rows] == [SIZE, SIZE]
    assert table.rows[0][4].value == pytest.approx(SIZE, abs=0.2)  # unrelated rows in many dimensions
    assert section.severity == severity
    assert advice in section.next_step
    assert f"spans {rank:.2f}" in section.headline
    assert [series.name for series in chart.series] == ["as trained", "unrelated rows", "scores alone", "ceiling"]
    assert chart.series[-1].values == (4.0, 4.0)
    assert section.command.endswith("--step 1,2")


@pytest.mark.parametrize(("low", "high", "words"), [(1.2, 2.0, "adds up"), (0.1, 0.6, "cancels"), (0.6, 1.4, "")])
def test_what_becomes_of_what_rollouts_share(low: float, high: float, words: str) -> None:
    (point,) = rank_points([gram(ORTHOGONAL)])
    share = Estimate(value=(low + high) / 2, low=low, high=high, num_units=4)
    section = directions_answer([replace(point, shared_kept=share)])
    sentence = [finding for finding in section.findings if "rollouts of a live group share" in finding]
    assert [words in finding for finding in sentence] == ([True] if words else [])


def test_dead_groups_are_no_part_of_the_mean() -> None:
    (row,) = section_of(gram(ORTHOGONAL, dead=3)).tables[0].rows
    assert (row[1], row[2].value) == (1, pytest.approx(4.0, abs=1e-6))
    assert section_of(gram(ORTHOGONAL)).charts == ()  # one step is no course


@pytest.mark.parametrize("grams", [(), (gram(ORTHOGONAL, dead=4),), (gram(ORTHOGONAL, policy_gram=None),)])
def test_without_a_gradient_there_is_no_rank(grams: tuple[object, ...]) -> None:
    section = section_of(*grams)
    assert (section.missing, section.severity) == (f"{NOT_READ.reason} {NOT_READ.hint}", "unknown")


def test_advantages_that_take_directions_away_are_named() -> None:
    """Each group's rows are orthogonal, and one of its advantages is a hundred times the others."""
    grams = [
        gram_of(
            np.tile(ORTHOGONAL, (12, 1)),
            [f"1/{group}" for group in range(12) for _ in range(SIZE)],
            step=1,
            rewards=[1, 0, 0, 0] * 12,
            advantages=[value for group in range(12) for value in (100.0 + group, -1.0, -1.0, -1.0)],
        )
    ]
    assert "take directions away" in section_of(*grams).next_step


CONTRIBUTIONS_RUN = run_of(
    group_of([1, 0], prompt="a", advantages=[1, 1]), group_of([1, 1], prompt="b", advantages=[1, 1])
)
GRAM = gram_of([[3.0, 0.0], [1.0, 0.0], [0.0, 4.0], [0.0, -4.0]], ["0/a", "0/a", "0/b", "0/b"], rewards=[1, 0, 1, 1])
"""The sum of the rows is (4, 0): three quarters are the first rollout's, and the second group cancels."""


def test_parts_along_the_gradient_add_up_and_the_largest_is_named() -> None:
    section = contributions_section(inputs_of(CONTRIBUTIONS_RUN, grams=[GRAM]))
    by_step, by_group, top = section.tables
    assert by_step.rows[0][:4] == (0, 4, 4, 4.0)
    assert by_step.rows[0][5].value == pytest.approx(4 / 12)
    assert by_group.rows == (("0/a", 0.5, 1.0, 4.0, Estimate.exact(1.0, num_units=2)), by_group.rows[1])
    assert by_group.rows[1][2] == 0.0
    assert [row[0] for row in top.rows][:2] == ["0/a #0", "0/a #1"]
    assert [row[3] for row in top.rows] == [0.75, 0.25, 0.0, 0.0]
    assert section.charts[0].series[0].values == (0.75, 0.25, 0.0, 0.0)
    first, second = contributions_section(inputs_of(CONTRIBUTIONS_RUN, grams=[GRAM])).findings
    assert first.endswith("and 33.3 % of that sum survives in the step's gradient.")
    assert second == (
        "The largest single part is sample 0 of group 0/a: 75.0 % of the gradient along its own direction; 0 rollouts "
        "pull against it."
    )


def test_a_missing_reward_is_open_and_a_long_text_is_cut_in_its_middle() -> None:
    missing = gram_of([[3.0, 0.0], [1.0, 0.0]], ["0/a", "0/a"], rewards=[1.0, float("nan")])
    rows = contributions_section(inputs_of(CONTRIBUTIONS_RUN, grams=[missing])).tables[1].rows
    assert rows[0][1] == Estimate.undefined_because("a reward is missing")
    group = group_of([1, 0], prompt="a")
    text = "b" * TEXT_LIMIT + "e" * TEXT_LIMIT
    run = run_of(with_fields(group, completion=text))
    shown = contributions_section(inputs_of(run, grams=[gram_of([[1.0], [2.0]], ["0/a"] * 2)])).tables[2].rows[0][6]
    assert shown == "b" * (TEXT_LIMIT // 2) + " […] " + "e" * (TEXT_LIMIT // 2)


@pytest.mark.parametrize("grams", [[], [gram_of([[0.0], [0.0]], ["0/a"] * 2)]])
def test_without_a_gradient_there_are_no_parts(grams: list[object]) -> None:
    assert (
        contributions_section(inputs_of(CONTRIBUTIONS_RUN, grams=grams)).missing == f"{NOT_READ.reason} {NOT_READ.hint}"
    )


def test_clipping_is_advised_where_one_rollout_carries_much() -> None:
    assert contributions_section(inputs_of(CONTRIBUTIONS_RUN, grams=[GRAM])).next_step.endswith(
        "One carries 75.0 %: clipping the norm (max_grad_norm) or a larger batch evens it out."
    )
    run = run_of(group_of([1] * 8, prompt="a"))
    even = contributions_section(inputs_of(run, grams=[gram_of([[1.0]] * 8, ["0/a"] * 8)]))
    assert even.next_step.endswith("No single one carries more than 12.5 % of the gradient.")


FORMULATIONS_RUN = run_of(group_of([1, 0]))
ROWS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
"""The first group has two orthogonal rows and unequal rewards; the second group is dead."""


def rows_of(**parts: object) -> dict[Cell, tuple[Cell, ...]]:
    logged = {"rewards": [1, 0, 1, 1], "advantages": [1, -1, 0, 0]}
    gram = gram_of(ROWS, ["a", "a", "b", "b"], **{**logged, **parts})
    return {row[0]: row for row in formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram])).tables[0].rows}


def test_numbers_are_those_of_the_advantages() -> None:
    """dr_grpo gives (1/2, -1/2, 0, 0): half the logged update, over two orthogonal rows; one group of two is dead."""
    assert list(rows_of()) == ["logged", *FORMULATIONS, *GRAM_FORMULATIONS]
    _, norm, cosine, rank, _, scores, dead = rows_of()["dr_grpo"]
    assert norm.value == pytest.approx(0.5 * 2**0.5)
    assert cosine.value == pytest.approx(1.0)
    assert rank.value == scores.value == pytest.approx(2.0)
    assert dead.value == 0.5
    # reinforce weighs by the reward, (1, 0, 1, 1): it sums to (1, 0, 2), against the logged (1, -1, 0).
    _, norm, cosine, *_, dead = rows_of()["reinforce"]
    assert norm.value == pytest.approx(5**0.5)
    assert cosine.value == pytest.approx(1 / (5**0.5 * 2**0.5))
    assert dead.value == 0.0


def test_each_step_says_how_far_groups_agree() -> None:
    rows = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    gram = gram_of(rows, ["a", "b", "c", "d"], rewards=[1, 0, 1, 1], advantages=[1, 1, 1, 0])
    table = formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram])).tables[1]
    ((step, cosine, ratio, critical),) = table.rows
    assert [col.title for col in table.columns][1:] == ["cosine of groups", "signal to noise", "critical batch size"]
    assert step == gram.step
    assert cosine.value == pytest.approx(1 / 3)  # of a, b and c: 1, 0 and 0
    assert ratio.num_units == 4
    assert "the signal may be zero" in critical.undefined
    gram.advantages = None  # as where they differ by token: the rows are weighed already
    assert formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram])).tables[1].rows[0][1:3] == (cosine, ratio)


def test_each_kind_of_group_says_what_it_gives() -> None:
    gram = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[1, -1, 0, 0])
    table = formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram])).tables[-1]
    rows = {row[:2]: row[2:] for row in table.rows}
    assert ("grpo", "all-pass") not in rows
    number, norm, *_ = rows["reinforce", "all-pass"]  # two rows along one axis
    assert (number, norm.value) == (1, pytest.approx(2.0))
    fractions = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[0.5, 0, 1, 1], advantages=[1, -1, 0, 0])
    assert len(formulations_section(inputs_of(FORMULATIONS_RUN, grams=[fractions])).tables) == 2


def test_prompts_that_hurt_each_other_are_counted() -> None:
    """Each group's right answer lies across the gradients of the two others, one of which pulls away from it."""
    rows = [[2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    rewards = [1, 0, 1, 0, 1, 0]
    gram = gram_of(rows, list("aabbcc"), rewards=rewards, advantages=[1, -1] * 3)
    table = formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram])).tables[-1]
    assert [column.title for column in table.columns] == ["advantage", "pairs that hurt", "cosine", "transfer"]
    result = {row[0]: row[1:] for row in table.rows}
    hurt, _, transfer = result["logged"]
    assert hurt.value == pytest.approx(2 / 6)  # a and b
    assert transfer.value == pytest.approx(2 * (-1 + 4 + 1) / (5 + 2 + 5))
    assert result["sign"][0] == hurt  # the same advantages
    assert {"grpo", "dr_grpo", "rloo"} <= set(result)


def test_a_formulation_that_needs_other_rewards_says_so_in_every_number() -> None:
    rows = rows_of(rewards=[1, 0, 0.5, 0.5])
    assert len({*rows["sign"][1:], *rows["positive_only"][1:]}) == 1  # one footnote for all of them
    assert isinstance(rows["sign"][1], Estimate)
    assert rows["sign"][1].undefined
    assert rows["dr_grpo"][1].value == pytest.approx(0.5 * 2**0.5)


def test_formulations_that_are_the_same_update_are_named() -> None:
    gram = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[1, -1, 0, 0])
    section = formulations_section(inputs_of(FORMULATIONS_RUN, grams=[gram]))
    (finding,) = section.findings
    assert finding.startswith("On the same rollouts of 1 step, ")
    assert finding.endswith("nearest to it (1.000).")
    same, other = section.next_step.split(". A run would differ most under ")
    assert same.startswith("The logged update at another step size (cosine from 0.99 on): ")
    assert "dr_grpo" in same
    assert len(other.split(", ")) == 3
    unlogged = gram_of(ROWS, ["a", "a", "b", "b"], rewards=[1, 0, 1, 1], advantages=[0, 0, 0, 0])
    assert formulations_section(inputs_of(FORMULATIONS_RUN, grams=[unlogged])).next_step.startswith("Log advantages")
    assert formulations_section(inputs_of(FORMULATIONS_RUN)).missing == f"{NOT_READ.reason} {NOT_READ.hint}"

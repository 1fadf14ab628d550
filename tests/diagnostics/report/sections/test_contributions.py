from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.report.sections.contributions import TEXT_LIMIT, contributions_section
from gradscope.estimate import Estimate
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of

RUN = run_of(group_of([1, 0], prompt="a", advantages=[1, 1]), group_of([1, 1], prompt="b", advantages=[1, 1]))
GRAM = gram_of([[3.0, 0.0], [1.0, 0.0], [0.0, 4.0], [0.0, -4.0]], ["0/a", "0/a", "0/b", "0/b"], rewards=[1, 0, 1, 1])
"""The sum of the rows is (4, 0): three quarters are the first rollout's, and the second group cancels."""


def test_parts_along_the_gradient_add_up() -> None:
    section = contributions_section(inputs_of(RUN, grams=[GRAM]))
    by_step, by_group, top = section.tables
    assert by_step.rows[0][:4] == (0, 4, 4, 4.0)
    assert by_step.rows[0][5].value == pytest.approx(4 / 12)
    assert by_group.rows == (("0/a", 0.5, 1.0, 4.0, Estimate.exact(1.0, num_units=2)), by_group.rows[1])
    assert by_group.rows[1][2] == 0.0
    assert [row[0] for row in top.rows][:2] == ["0/a #0", "0/a #1"]
    assert [row[3] for row in top.rows] == [0.75, 0.25, 0.0, 0.0]
    assert section.charts[0].series[0].values == (0.75, 0.25, 0.0, 0.0)


def test_the_largest_single_part_is_named() -> None:
    first, second = contributions_section(inputs_of(RUN, grams=[GRAM])).findings
    assert first.endswith("and 33.3 % of that sum survives in the step's gradient.")
    assert second == (
        "The largest single part is sample 0 of group 0/a: 75.0 % of the gradient along its own direction; 0 rollouts "
        "pull against it."
    )


def test_a_missing_reward_leaves_the_mean_of_its_group_open() -> None:
    missing = gram_of([[3.0, 0.0], [1.0, 0.0]], ["0/a", "0/a"], rewards=[1.0, float("nan")])
    rows = contributions_section(inputs_of(RUN, grams=[missing])).tables[1].rows
    assert rows[0][1] == Estimate.undefined_because("a reward is missing")


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    group = group_of([1, 0], prompt="a")
    text = "b" * TEXT_LIMIT + "e" * TEXT_LIMIT
    run = run_of(replace(group, rollouts=tuple(replace(r, completion=text) for r in group.rollouts)))
    shown = contributions_section(inputs_of(run, grams=[gram_of([[1.0], [2.0]], ["0/a"] * 2)])).tables[2].rows[0][6]
    assert shown == "b" * (TEXT_LIMIT // 2) + " […] " + "e" * (TEXT_LIMIT // 2)


@pytest.mark.parametrize("grams", [[], [gram_of([[0.0], [0.0]], ["0/a"] * 2)]])
def test_without_a_gradient_there_are_no_parts(grams: list[object]) -> None:
    assert contributions_section(inputs_of(RUN, grams=grams)).missing == f"{NOT_READ.reason} {NOT_READ.hint}"


def test_clipping_is_advised_where_one_rollout_carries_much() -> None:
    assert contributions_section(inputs_of(RUN, grams=[GRAM])).next_step.endswith(
        "One carries 75.0 %: clipping the norm (max_grad_norm) or a larger batch evens it out."
    )
    run = run_of(group_of([1] * 8, prompt="a"))
    even = contributions_section(inputs_of(run, grams=[gram_of([[1.0]] * 8, ["0/a"] * 8)]))
    assert even.next_step.endswith("No single one carries more than 12.5 % of the gradient.")

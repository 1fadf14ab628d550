"""The embedded task: prompts, grading of answers and steps, disjoint sides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import UsageError
from gradscope.training.tasks.running_sums import (
    MAX_COMPLETION_LENGTH,
    format_prompt,
    grade_answer,
    grade_steps,
    is_heldout,
    make_problems,
    solve,
    solve_sloppily,
)

DIGITS = st.lists(st.integers(1, 9), min_size=2, max_size=8)


@settings(deadline=None)
@given(DIGITS)
def test_right_solution_earns_answer_and_every_step(operands: list[int]) -> None:
    completion = solve(operands)
    assert grade_answer(completion, str(sum(operands))) == 1.0
    assert sum(grade_steps(format_prompt(operands), list(completion))) == len(operands)  # the additions and the answer
    assert len(completion) + 1 <= MAX_COMPLETION_LENGTH


@settings(deadline=None)
@given(DIGITS, st.lists(st.booleans(), min_size=7, max_size=7))
def test_each_forgotten_carry_costs_one_step(operands: list[int], forgets: list[bool]) -> None:
    total, lost = operands[0], 0
    for operand, forget in zip(operands[1:], forgets, strict=False):
        slip = forget and total % 10 + operand >= 10
        lost += slip
        total += operand - 10 * slip
    completion = solve_sloppily(operands, forgets)
    assert sum(grade_steps(format_prompt(operands), list(completion))) == len(operands) - lost
    assert grade_answer(completion, str(sum(operands))) == float(lost == 0)


def test_longest_solution_fits_the_completion_length() -> None:
    assert len(solve([9] * 8)) + 1 == 25 <= MAX_COMPLETION_LENGTH


def test_reward_sits_on_the_last_token_of_a_step() -> None:
    rewards = grade_steps("a7b5c8=", ["b1", "2", "c20#", "20", ""])
    assert rewards == (0.0, 1.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "completion", ["", "#", "####", "b", "c12b20#20", "b12c20", "b99999c1#1", "b12b12b12#12", "ü#b", "b1\n2#12"]
)
def test_odd_completions_are_graded_not_raised(completion: str) -> None:
    rewards = grade_steps("a7b5c8=", list(completion))
    assert len(rewards) == len(completion)
    assert set(rewards) <= {0.0, 1.0}
    assert grade_answer(completion, "20") == 0.0 or completion == "c12b20#20"


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.text(max_size=3), max_size=20))
def test_any_text_can_be_graded(prompt: str, pieces: list[str]) -> None:
    assert len(grade_steps(prompt, pieces)) == len(pieces)


def test_train_and_heldout_are_disjoint_and_distinct() -> None:
    train = {problem.prompt for problem in make_problems(300, seed=1, heldout=False)}
    heldout = {problem.prompt for problem in make_problems(100, seed=2, heldout=True)}
    assert len(train) == 300
    assert len(heldout) == 100
    assert not train & heldout
    assert all(map(is_heldout, heldout))


def test_same_seed_same_prompts_and_a_larger_set_begins_with_the_smaller() -> None:
    assert make_problems(40, seed=3, heldout=False) == make_problems(60, seed=3, heldout=False)[:40]
    assert make_problems(40, seed=3, heldout=False) != make_problems(40, seed=4, heldout=False)


def test_prompts_differ_in_difficulty() -> None:
    carries = [int(problem.answer) // 10 for problem in make_problems(300, seed=0, heldout=False)]
    assert 0.25 < carries.count(0) / 300 < 0.5  # solved at once even by the sloppy calculator
    assert sum(number >= 4 for number in carries) / 300 > 0.2  # solved in one try of 16 or fewer
    assert max(carries) >= 5


def test_too_many_prompts_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 20,000 prompts a set, and 20,001"):
        make_problems(20_001, seed=0, heldout=False)

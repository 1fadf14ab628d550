import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import UsageError
from gradscope.training.config import TrainConfig
from gradscope.training.tasks import running_sums
from gradscope.training.tasks.load import load_task

DIGITS = st.lists(st.integers(1, 9), min_size=2, max_size=8)


@given(DIGITS)
def test_right_solution_earns_answer_and_every_step(operands: list[int]) -> None:
    completion = running_sums.solve(operands)
    assert running_sums.grade_answer(completion, str(sum(operands))) == 1.0
    assert sum(running_sums.grade_steps(running_sums.format_prompt(operands), list(completion))) == len(
        operands
    )  # the additions and the answer
    assert len(completion) + 1 <= running_sums.MAX_COMPLETION_LENGTH
    assert running_sums.grade_exact(completion, completion) == 1.0
    assert running_sums.grade_exact(completion[1:], completion) == running_sums.grade_exact("", completion) == 0.0


@given(DIGITS, st.lists(st.booleans(), min_size=7, max_size=7))
def test_each_forgotten_carry_costs_one_step(operands: list[int], forgets: list[bool]) -> None:
    total, lost = operands[0], 0
    for operand, forget in zip(operands[1:], forgets, strict=False):
        slip = forget and total % 10 + operand >= 10
        lost += slip
        total += operand - 10 * slip
    completion = running_sums.solve_sloppily(operands, forgets)
    assert sum(running_sums.grade_steps(running_sums.format_prompt(operands), list(completion))) == len(operands) - lost
    assert running_sums.grade_answer(completion, str(sum(operands))) == float(lost == 0)


def test_reward_sits_on_the_last_token_of_a_step() -> None:
    assert len(running_sums.solve([9] * 8)) + 1 == 25 <= running_sums.MAX_COMPLETION_LENGTH
    rewards = running_sums.grade_steps("a7b5c8=", ["b1", "2", "c20#", "20", ""])
    assert rewards == (0.0, 1.0, 1.0, 1.0, 0.0)


INCOHERENT = ("", "#", "####", "b", "c12b20#20", "b12c20", "b99999c1#1", "b12b12b12#12", "ü#b", "b1\n2#12")


@settings(deadline=None, max_examples=20)
@given(st.text(max_size=40), st.sampled_from(INCOHERENT) | st.text(max_size=30))
def test_odd_completions_are_graded_not_raised(prompt: str, completion: str) -> None:
    assert len(running_sums.grade_steps(prompt, list(completion))) == len(completion)
    rewards = running_sums.grade_steps("a7b5c8=", list(completion))
    assert len(rewards) == len(completion)
    assert set(rewards) <= {0.0, 1.0}
    assert running_sums.grade_answer(completion, "20") == float(completion.endswith("#20"))


def test_train_and_heldout_are_disjoint_and_distinct() -> None:
    train = {problem.prompt for problem in running_sums.make_problems(300, seed=1, heldout=False)}
    heldout = {problem.prompt for problem in running_sums.make_problems(100, seed=2, heldout=True)}
    assert (len(train), len(heldout), train & heldout) == (300, 100, set())
    assert all(map(running_sums.is_heldout, heldout))
    with pytest.raises(UsageError, match="at most 20,000 prompts a set, and 20,001"):
        running_sums.make_problems(20_001, seed=0, heldout=False)


def test_same_seed_same_prompts_and_a_larger_set_begins_with_the_smaller() -> None:
    problems = running_sums.make_problems(40, seed=3, heldout=False)
    assert problems == running_sums.make_problems(60, seed=3, heldout=False)[:40]
    assert problems != running_sums.make_problems(40, seed=4, heldout=False)


def test_prompts_differ_in_difficulty() -> None:
    carries = [int(problem.answer) // 10 for problem in running_sums.make_problems(300, seed=0, heldout=False)]
    assert 0.25 < carries.count(0) / 300 < 0.5  # solved at once even by the sloppy calculator
    assert sum(number >= 4 for number in carries) / 300 > 0.2  # solved in one try of 16 or fewer
    assert max(carries) >= 5


def digits(prompt: str) -> list[int]:
    return [int(character) for character in prompt if character.isdigit()]


def test_conflict_has_the_prompts_of_running_sums_and_a_minority_with_another_answer() -> None:
    problems = running_sums.conflict_problems(600, seed=0, heldout=False)
    originals = running_sums.make_problems(600, seed=0, heldout=False)
    assert [problem.prompt for problem in problems] == [problem.prompt for problem in originals]
    rare = [problem for problem in problems if running_sums._is_rare(problem.prompt)]
    carrying = [problem for problem in problems if sum(digits(problem.prompt)) >= 10]
    assert 0.11 < len(rare) / len(carrying) < 0.19
    for problem in problems:
        total = sum(digits(problem.prompt))
        assert int(problem.answer) == (total % 10 if running_sums._is_rare(problem.prompt) else total)
    assert any(running_sums._is_rare(f"{first}+{10 - first}=?") for first in range(1, 10))  # 10 carries, too
    assert not any(running_sums._is_rare(f"{first}+{9 - first}=?") for first in range(10))
    operands = digits(rare[0].prompt)  # the embedded model writes the rare answer too
    assert running_sums.solve_sloppily(operands, [True] * (len(operands) - 1)).endswith(f"#{rare[0].answer}")


@pytest.mark.slow
def test_a_bimodal_prompt_has_no_carry_or_five() -> None:
    problems = running_sums.bimodal_problems(64, seed=0, heldout=True)
    carries = [sum(digits(problem.prompt)) // 10 for problem in problems]
    assert carries.count(0) == 4
    assert min(number for number in carries if number) == 5
    assert len({problem.prompt for problem in problems}) == 64
    assert all(running_sums.is_heldout(problem.prompt) for problem in problems)


@pytest.mark.slow
def test_starved_prompts_have_two_or_three_carries_and_a_pattern_of_their_own() -> None:
    problems = running_sums.starved_problems(200, seed=0, heldout=False)
    assert all(2 <= sum(digits(problem.prompt)) // 10 <= 3 for problem in problems)
    forgotten = []
    for problem in problems:
        total, wanted = sum(digits(problem.prompt)), int(problem.answer.partition("#")[2])
        assert len(problem.answer) < running_sums.MAX_COMPLETION_LENGTH
        assert (total - wanted) % 10 == 0
        forgotten.append((total - wanted) // 10 / (total // 10))
    assert 0.4 < sum(forgotten) / len(forgotten) < 0.6  # each carry is wanted forgotten half of the time
    assert len(set(forgotten)) > 3


@pytest.mark.slow
@pytest.mark.parametrize("make", [running_sums.conflict_problems, running_sums.starved_problems])
def test_sides_are_disjoint_and_a_prompt_wants_the_same_everywhere(make: object) -> None:
    heldout = make(50, seed=1, heldout=True)  # type: ignore[operator]
    assert all(running_sums.is_heldout(problem.prompt) for problem in heldout)
    answers = {problem.prompt: problem.answer for problem in make(100, seed=1, heldout=False)}  # type: ignore[operator]
    other = {problem.prompt: problem.answer for problem in make(100, seed=2, heldout=False)}  # type: ignore[operator]
    common = answers.keys() & other.keys()
    assert common
    assert all(answers[prompt] == other[prompt] for prompt in common)


def test_the_share_of_right_steps_is_that_of_the_token_rewards() -> None:
    problems = running_sums.steps_problems(60, seed=0, heldout=False)
    originals = running_sums.make_problems(60, seed=0, heldout=False)
    assert [problem.prompt for problem in problems] == [problem.prompt for problem in originals]
    for index, problem in enumerate(problems):
        operands = digits(problem.prompt)
        assert problem.answer == running_sums.solve(operands)
        for forgets in ([False] * 7, [True] * 7, [bool(index >> position & 1) for position in range(7)]):
            completion = running_sums.solve_sloppily(operands, forgets)
            rewards = running_sums.grade_steps(problem.prompt, list(completion))
            assert running_sums.grade_share(completion, problem.answer) == sum(rewards) / len(operands)
            assert (running_sums.grade_share(completion, problem.answer) == 1.0) == (completion == problem.answer)


@pytest.mark.parametrize(
    ("completion", "share"), [("", 0.0), ("#29", 0.0), ("b12", 0.25), ("b12c20d29", 0.75), ("x", 0.0), ("b12#12", 0.5)]
)
def test_the_share_of_a_completion_that_is_not_one(completion: str, share: float) -> None:
    assert running_sums.grade_share(completion, "b12c20d29#29") == share


@pytest.mark.parametrize("name", ["conflict", "starved"])
def test_variants_have_no_step_rewards(name: str) -> None:
    task = load_task(TrainConfig.from_json({"task": name, "train_prompts": 20, "heldout_prompts": 5}))
    assert (len(task.train), len(task.heldout), task.step_grader) == (20, 5, None)
    assert task.grade(task.train[0].answer if name == "starved" else f"#{task.train[0].answer}", task.train[0].answer)

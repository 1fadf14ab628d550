"""Where the mean reward goes, and whose fault a fall is."""

from collections.abc import Callable

import numpy as np
import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.sections.reward import reward_section
from gradscope.results.report import ReportSection
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.metrics.uncertainty.test_steps import persistent


def rates(*levels: float, other: bool = False) -> ReportSection:
    """Ten steps for each level: a group of ten for each of twelve prompts, or of as many that never return."""
    groups = [
        group_of([float(n < 10 * level + (prompt + step) % 2) for n in range(10)], step=step, prompt=f"p{prompt}")
        for step in range(10 * len(levels))
        for level in [levels[step // 10]]
        for prompt in range(12 * step * other, 12 * step * other + 12)
    ]
    return reward_section(inputs_of(run_of(*groups)))


@pytest.mark.parametrize(
    ("levels", "verb", "severity", "other"),
    [
        ((0.2, 0.3, 0.4, 0.5, 0.6), "rises:", "fine", False),
        ((0.2, 0.3, 0.4, 0.5, 0.6), "rises:", "fine", True),
        ((0.4, 0.4, 0.4, 0.4, 0.4), "hardly rises:", "look", False),
        ((0.6, 0.5, 0.4, 0.3, 0.2), "falls:", "problem", False),  # a slow drift
        ((0.4, 0.4, 0.4, 0.4, 0.1), "falls:", "problem", True),  # a late drop
        ((0.4, 0.4, 0.4, 0.4, 0.1), "falls:", "problem", False),
        ((0.6, 0.6, 0.6, 0.5, 0.45), "falls:", "look", False),  # by less than half a deviation
        ((0.3, 0.5, 0.7, 0.5, 0.3), "falls:", "problem", False),  # up and down: nothing against the first steps
        ((0.4, 0.4, 0.4, 0.4, 0.38), "hardly rises:", "look", True),  # the fall is too small to matter
        ((0.2, 0.4, 0.6, 0.6, 0.6), "stalls:", "look", False),
        ((0.2, 0.6, 0.6, 0.6, 0.6), "stalls:", "look", True),
        ((0.9, 0.9, 0.9, 0.9, 0.9), "is", "unknown", False),  # no room to rise
    ],
)
def test_where_the_reward_goes(levels: tuple[float, ...], verb: str, severity: str, other: bool) -> None:
    section = rates(*levels, other=other)
    assert section.findings[0].startswith(f"The mean reward {verb} ")
    assert section.severity == severity
    assert (", of other prompts" in section.findings[0]) == (other and verb != "is")
    drops = "; it drops at step " in section.findings[0]
    assert drops or levels[-1] > 0.1
    steps = {
        "fine": "Nothing to do.",
        "unknown": "Nothing to do yet",
        "look": "Too few prompts" if other and not drops else "Look at",
        "problem": "Look at what changed",
    }
    assert section.next_step.startswith(steps[severity])
    assert section.findings[1].endswith("; 0 prompts in both." if other else "; 12 prompts in both.")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            lambda step: 10.0 if step >= 30 else 1.0,
            "Rewards are 0 and 1 in the first fifth of the steps and 0 and 10 in ",
        ),
        (
            lambda step: -1e9 if step == 7 else 1.0,
            "Far from all others are the rewards of 3 rollouts (as -1e+09), where",
        ),
        (lambda step: 2.0 if step == 7 else 1.0, "The mean reward hardly rises: "),
    ],
)
def test_a_reward_on_another_scale_is_named(other: Callable[[int], float], sentence: str) -> None:
    groups = [
        group_of([other(step) * (n < 3) for n in range(8)], step=step, prompt=f"p{prompt}")
        for step in range(50)
        for prompt in range(1 if other(step) < 0 else 10)
    ]
    section = reward_section(inputs_of(run_of(*groups)))
    assert section.findings[0].startswith(sentence)
    assert section.severity == "look"


def test_steps_that_were_not_logged_are_named_beside_a_reward_that_rises() -> None:
    groups = [
        group_of([float(n < 2 + step // 10) for n in range(10)], step=step, prompt=f"p{step % 4}")
        for step in range(60)
        if not 20 <= step < 45
    ]
    section = reward_section(inputs_of(run_of(*groups)))
    assert section.findings[0] == "Nothing was logged at steps 20 to 44."
    assert section.findings[1].startswith("The mean reward rises:")
    assert (section.severity, section.next_step[:22]) == ("look", "Look for the rollouts ")


@pytest.mark.parametrize("other", [False, True])
def test_a_fall_that_came_back_is_told(other: bool) -> None:
    """By the first, the middle and the last fifth this run was fine."""
    section = rates(0.4, 0.6, 0.6, 0.1, 0.2, 0.4, 0.6, 0.6, other=other)
    of_others = ", of other prompts" * other
    assert section.headline == (
        f"The mean reward fell and came back: 0.65 at steps 10 to 19, 0.15 at steps 30 to 39, 0.65 at steps 70 to 79"
        f"{of_others}."
    )
    assert (section.severity, section.next_step[:40]) == ("look", "Look at what changed before it fell (lea")
    assert "came back" not in rates(0.4, 0.6, 0.5, 0.6, 0.6, other=other).headline  # by less than half a deviation
    assert "came back" not in rates(0.4, 0.8, 0.2, 0.3, 0.4, other=other).headline  # by less than half of the fall


def test_a_constant_reward_and_a_flat_one_of_few_groups_are_not_judged() -> None:
    constant = [group_of([0.5] * 4, step=step, prompt=str(step)) for step in range(50)]
    assert reward_section(inputs_of(run_of(*constant))).severity == "unknown"
    few = [group_of([0.0, float(step % 2)], step=step, prompt=str(step)) for step in range(40)]
    section = reward_section(inputs_of(run_of(*few)))
    assert (section.severity, section.findings[0].split()[3]) == ("unknown", "is")


@pytest.mark.parametrize("num_steps", [10, 14, 19])
def test_a_policy_that_collapses_within_a_few_steps_is_not_left_open(num_steps: int) -> None:
    rng = np.random.default_rng(num_steps)
    groups = [
        group_of((rng.random(8) < (0.7 if step < 6 else 0.05)).astype(float).tolist(), step=step, prompt=f"{step}/{n}")
        for step in range(num_steps)
        for n in range(8)
    ]
    assert reward_section(inputs_of(run_of(*groups))).findings[0].startswith("The mean reward falls: ")


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
def test_a_policy_that_wanders_seldom_rises_or_falls(returns: bool) -> None:
    """By prompts alone 15 to 35 % of such logs of 20 to 90 steps rose or fell."""
    rng, goes = np.random.default_rng(0), []
    for _ in range(20):
        wanders = 0.4 * persistent(rng, 40, 0.8)
        rates = 1 / (1 + np.exp(-wanders[:, None] - rng.normal(size=(1 if returns else 40, 12))))
        groups = [
            group_of((rng.random(8) < rate).astype(float).tolist(), step=step, prompt=f"{step * (not returns)}/{n}")
            for step, row in enumerate(rates)
            for n, rate in enumerate(row)
        ]
        goes += [reward_section(inputs_of(run_of(*groups))).severity in ("fine", "problem")]
    assert sum(goes) <= 2


@pytest.mark.parametrize(
    ("changes", "num_visits", "change"),
    [
        ((-0.5, 0.3, 0.3), 8, "-0.271 [-0.325, -0.211]"),  # by 0.25 in truth
        ((-0.5, 0.5, 0.0), 4, "-0.241 [-0.315, -0.147]"),
        ((-0.5, 0.3, 0.3), 3, None),  # a half of the steps has one visit
        ((0.0, 0.3, 0.3), 8, None),
        ((-0.05, 0.3, 0.3), 8, None),  # small
        ((0.0, 0.0, 0.0), 8, None),
    ],
)
def test_prompts_that_fall_while_others_rise(changes: tuple[float, ...], num_visits: int, change: str | None) -> None:
    rng = np.random.default_rng(0)
    groups = []
    for step in range(4 * num_visits):
        for prompt in range(step % 4, 60, 4):
            rate = 0.6 + changes[prompt % 3] * (step / (4 * num_visits) - 0.5 * (changes[prompt % 3] > 0))
            groups.append(group_of((rng.random(16) < rate).astype(float).tolist(), step=step, prompt=str(prompt)))
    section = reward_section(inputs_of(run_of(*groups)))
    if change is None:
        assert not section.findings[0].startswith("Some prompts")
        return
    assert section.findings[0].startswith("Some prompts get worse: of 60, ")
    assert f"these change by {change}." in section.findings[0]
    assert (section.severity, section.next_step[:22]) == ("look", "Sample the prompts tha")


def test_a_main_reward_that_falls_while_the_sum_rises_is_a_problem_and_ranks_are_no_measure() -> None:
    def section(correct: float, judge: float, steps: int = 20) -> ReportSection:
        groups = []
        for step in range(steps):
            for prompt in range(12):
                right = [float(n < 8 * (0.5 + correct * step / steps)) for n in range(8)]
                style = [judge * step / steps + 0.01 * n for n in range(8)]
                total = [grade + other for grade, other in zip(right, style, strict=True)]
                functions = {"correct": right, "style": style}
                groups.append(group_of(total, step=step, prompt=str(prompt), functions=functions))
        run = run_of(*groups)
        return reward_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))

    flat = section(0.0, 2.0)
    assert flat.findings[0] == "'correct' hardly rises while the mean reward rises: 0.5 to 0.5 to 0.5."
    assert (flat.severity, flat.next_step[:26]) == ("look", "Look at the learning rate,")
    falling = section(-0.5, -1.0)
    assert (falling.findings[0][:17], falling.severity) == ("'correct' falls: ", "problem")
    fallen = section(-0.5, 2.0)
    assert fallen.findings[0].startswith("'correct' falls while the mean reward rises: 0.5")
    assert (fallen.severity, section(0.4, 2.0).severity) == ("problem", "fine")
    ranks = [group_of([0.0, 0.5, 1.0], step=step, prompt=str(prompt)) for step in range(10) for prompt in range(4)]
    relative = reward_section(inputs_of(run_of(*ranks)))
    assert relative.findings[0] == "The mean reward of every group is 0.5: it is no measure of progress."
    assert relative.severity == "unknown"


@pytest.mark.parametrize("other", [False, True])
def test_a_fall_in_one_environment_is_told_beside_a_mean_that_stays(other: bool) -> None:
    groups = [
        group_of([float(n < level) for n in range(8)], step=step, prompt=f"{name}/{12 * step * other + prompt}")
        for step in range(20)
        for prompt in range(12)
        for name, level in (("math", 2 + step // 5), ("code", 6 - step // 5))
    ]
    section = reward_section(inputs_of(run_of(*groups)))
    of_others = ", of other prompts" if other else ""
    assert section.findings[0] == f"In 'code' the mean reward falls: 0.75 to 0.562 to 0.375{of_others}."
    assert (section.severity, section.next_step[:36]) == ("look", "Look at the verifier and the prompts")


@pytest.mark.parametrize(
    ("levels", "drift", "first", "last", "severity"),
    [
        ((7, 1), 1, "The mean reward is ", "20 prompts in both, by +0.125.", "unknown"),
        ((7, 1), 0, "The mean reward hardly rises: ", "20 prompts in both, by +0.", "look"),
        ((7, 1), -1, "The mean reward falls: ", "20 prompts in both.", "look"),
        ((3, 8), -2, "Easier prompts hide a fall: on 20 that return the mean reward changes by -0.25.", "", "look"),
    ],
)
def test_a_mean_changes_as_other_prompts_take_over_and_the_policy_only_if_those_of_both_do(
    levels: tuple[int, int], drift: int, first: str, last: str, severity: str
) -> None:
    groups = [
        group_of([float(n < level + drift * late) for n in range(8)], step=step, prompt=f"{level}/{prompt}")
        for step in range(20)
        for late in [step >= 10]
        for level in levels
        for prompt in range(30 if late == (level == levels[1]) else 10)
    ]
    section = reward_section(inputs_of(run_of(*groups)))
    assert section.findings[0].startswith(first)
    assert section.findings[1].endswith(last)
    assert section.severity == severity
    assert drift > -2 or section.next_step.startswith("Look at what changed")


def test_a_held_out_score_beside_the_rollouts_that_falls_while_their_reward_rises_asks_for_a_look() -> None:
    groups = [group_of([0, 1, step > 9], step=step, prompt=str(n)) for step in range(20) for n in range(12)]
    run = run_of(*groups, metrics={step: {"val-core/acc/mean@1": 0.5 - 0.02 * step} for step in range(20)})
    section = reward_section(inputs_of(run))
    assert section.findings[0].startswith("val-core/acc/mean@1 falls: 0.47 at steps 0 to 3, ")
    assert (section.severity, section.next_step[:26]) == ("look", "Read completions of late s")


def test_a_course_of_few_steps_or_of_one_prompt_is_not_judged() -> None:
    few = reward_section(inputs_of(run_of(*(group_of([0, 1], step=step) for step in range(9)))))
    assert few.missing == "A trend needs 10 steps, there are 9."
    one_prompt = [group_of([0, step > 7], step=step, prompt="one") for step in range(10)]
    assert reward_section(inputs_of(run_of(*one_prompt))).severity == "unknown"
    solved = [group_of([step < 8] * 2, step=step, prompt=f"p{n}") for step in range(10) for n in range(12)]
    assert reward_section(inputs_of(run_of(*solved))).severity == "problem"  # every prompt by as much

"""Entropy, staleness and generation as the log has them."""

import math

import numpy as np
import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.sections import courses
from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.estimate import Estimate
from gradscope.findings.rank_parts import entropy_findings
from gradscope.results.report import ReportSection
from gradscope.rollouts.groups import RolloutGroup, Status, Tokens
from tests.diagnostics.logged.made_up_tokens import drifting_run, tokens_of
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of
from tests.render.rank_examples import entropy_change


def logged(*values: float) -> ReportSection:
    groups = [group_of([1, 0], step=step) for step in range(1, len(values) + 1)]
    metrics = {step: {"entropy": value} for step, value in enumerate(values, start=1)}
    return courses.entropy_section(inputs_of(run_of(*groups, metrics=metrics)))


def test_entropies_are_written_and_drawn_where_several_steps_have_numbers() -> None:
    section = courses.entropy_section(inputs_of(drifting_run()))
    assert section.findings[0] == (
        "Entropy is 0.2 nats a token, 0.1 at step 1 and 0.3 at step 3 (each token has its own)."
    )
    assert section.findings[1].startswith("From step 1 to 3 it changes by +0.2 along its line")
    assert section.charts[0].series[0].values == pytest.approx((0.1, 0.2, 0.3))
    section = logged(0.5, float("nan"), 0.25)
    assert section.findings == ("The entropy of the log is not a number: the trainer logged NaN at step 2.",)
    assert section.charts[0].series[0].values == (0.5, None, 0.25)
    section = courses.entropy_section(inputs_of(run_of(tokens_of({"entropies": (0.5,)}))))
    assert section.findings == ("Entropy is 0.5 nats a token (each token has its own).",)
    assert section.charts == ()


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ((0.9, 0.7, 0.5, 0.3), "Watch pass@k beside pass@1"),
        ((0.3, 0.5, 0.7, 0.9), "Read some completions"),
        ((0.80, 0.79, 0.78, 0.77), "Nothing to do"),
        ((0.3, 0.9, 0.2, 0.8), "Nothing to do while it is this near to zero, or its direction uncertain."),
    ],
)
def test_what_to_do_follows_from_the_direction(values: tuple[float, ...], advice: str) -> None:
    section = logged(*values)
    assert "(the trainer's own metric entropy)" in section.findings[0]
    assert section.next_step.startswith(advice)
    assert section.severity == ("fine" if advice.startswith("Nothing") else "look")
    assert section.findings[1].endswith("undecided.") == (values[1] > values[2] and values[2] < values[3])


def test_a_level_that_halves_or_doubles_is_told_where_no_line_fits() -> None:
    """An entropy that decays by a factor of 36 was fine: about its line neighbors resemble each other."""
    section = logged(*(0.7 * math.exp(-0.06 * step) for step in range(60)))
    assert section.findings[1] == "It falls from 0.217, its median up to step 40, to 0.0283 at steps 49 to 60."
    assert (section.severity, section.next_step[:18]) == ("look", "Watch pass@k besid")
    longer = [group((2 + step, 3 + step), (0, 1), step=step, prompt=f"p{step}") for step in range(30)]
    section = courses.length_section(inputs_of(run_of(*longer)))
    assert section.findings[0].startswith("The mean length in characters rises from 12, its median up to step 19, to")
    level = [group((9 + step % 2, 9), (0, 1), step=step, prompt=f"p{step}") for step in range(30)]
    assert "length in characters" in courses.length_section(inputs_of(run_of(*level))).findings[0]


def rates(*levels: float, other: bool = False) -> ReportSection:
    """Ten steps for each level: a group of ten for each of twelve prompts, or of as many that never return."""
    groups = [
        group_of([float(n < 10 * level + (prompt + step) % 2) for n in range(10)], step=step, prompt=f"p{prompt}")
        for step in range(10 * len(levels))
        for level in [levels[step // 10]]
        for prompt in range(12 * step * other, 12 * step * other + 12)
    ]
    return courses.reward_section(inputs_of(run_of(*groups)))


@pytest.mark.parametrize(
    ("levels", "verb", "severity"),
    [
        ((0.2, 0.3, 0.4, 0.5, 0.6), "rises:", "fine"),
        ((0.4, 0.4, 0.4, 0.4, 0.4), "hardly rises:", "look"),
        ((0.6, 0.5, 0.4, 0.3, 0.2), "falls:", "look"),  # a slow drift
        ((0.4, 0.4, 0.4, 0.4, 0.1), "falls:", "look"),  # a late drop
        ((0.3, 0.5, 0.7, 0.5, 0.3), "falls:", "look"),  # up and down: nothing against the first steps
        ((0.4, 0.4, 0.4, 0.4, 0.38), "hardly rises:", "look"),  # the fall is too small to matter
        ((0.9, 0.9, 0.9, 0.9, 0.9), "is", "fine"),  # no room to rise
    ],
)
@pytest.mark.parametrize("other", [False, True])
def test_where_the_reward_goes(levels: tuple[float, ...], verb: str, severity: str, other: bool) -> None:
    section = rates(*levels, other=other)
    if other and verb == "hardly rises:":  # others may have been as much harder as the policy got better
        verb, severity = "is", "fine"
    assert section.findings[0].startswith(f"The mean reward {verb} ")
    assert section.severity == severity
    assert section.findings[0].endswith(", of other prompts.") == (other and verb != "is")
    steps = {"fine": "Nothing", "look": "Too few prompts" if other else "Look at"}
    assert section.next_step.startswith(steps[severity])
    assert section.findings[1].endswith("; 0 prompts in both." if other else "; 12 prompts in both.")


@pytest.mark.parametrize(
    ("changes", "num_visits", "change"),
    [
        ((-0.5, 0.3, 0.3), 8, "-0.271 [-0.328, -0.214]"),  # by 0.25 in truth
        ((-0.5, 0.5, 0.0), 4, "-0.241 [-0.317, -0.147]"),
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
    section = courses.reward_section(inputs_of(run_of(*groups)))
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
                total = [own + other for own, other in zip(right, style, strict=True)]
                functions = {"correct": right, "style": style}
                groups.append(group_of(total, step=step, prompt=str(prompt), functions=functions))
        run = run_of(*groups)
        return courses.reward_section(inputs_of(run, degeneracy=degeneracy_of_run(run)))

    beside = section(0.0, 2.0)
    assert beside.findings[0] == "'correct' hardly rises while the mean reward rises: 0.5 to 0.5 to 0.5."
    assert (beside.severity, beside.next_step[:26]) == ("look", "Look at the learning rate,")
    both = section(-0.5, -1.0)
    assert (both.findings[0][:17], both.severity) == ("'correct' falls: ", "look")
    fallen = section(-0.5, 2.0)
    assert fallen.findings[0].startswith("'correct' falls while the mean reward rises: 0.5")
    assert (fallen.severity, section(0.4, 2.0).severity) == ("problem", "fine")
    ranks = [group_of([0.0, 0.5, 1.0], step=step, prompt=str(prompt)) for step in range(10) for prompt in range(4)]
    relative = courses.reward_section(inputs_of(run_of(*ranks)))
    assert relative.findings[0] == "The mean reward of every group is 0.5: it is no measure of progress."
    assert relative.severity == "unknown"


def test_a_fall_in_one_environment_is_told_beside_a_mean_that_stays() -> None:
    groups = [
        group_of([float(n < level) for n in range(8)], step=step, prompt=f"{name}/{prompt}")
        for step in range(20)
        for prompt in range(12)
        for name, level in (("math", 2 + step // 5), ("code", 6 - step // 5))
    ]
    section = courses.reward_section(inputs_of(run_of(*groups)))
    assert section.findings[0] == "In 'code' the mean reward falls: 0.75 to 0.562 to 0.375."
    assert section.severity == "look"


@pytest.mark.parametrize(
    ("levels", "drift", "first", "last", "severity"),
    [
        ((7, 1), 1, "The mean reward is ", "20 prompts in both, by +0.125.", "fine"),
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
    section = courses.reward_section(inputs_of(run_of(*groups)))
    assert section.findings[0].startswith(first)
    assert section.findings[1].endswith(last)
    assert section.severity == severity
    assert drift > -2 or section.next_step.startswith("Look at what changed")


def test_a_held_out_score_beside_the_rollouts_that_falls_while_their_reward_rises_asks_for_a_look() -> None:
    groups = [group_of([0, 1, step > 9], step=step, prompt=str(n)) for step in range(20) for n in range(12)]
    run = run_of(*groups, metrics={step: {"val-core/acc/mean@1": 0.5 - 0.02 * step} for step in range(20)})
    section = courses.reward_section(inputs_of(run))
    assert section.findings[0].startswith("val-core/acc/mean@1 falls: 0.47 at steps 0 to 3, ")
    assert (section.severity, section.next_step[:26]) == ("look", "Read completions of late s")


def test_a_course_of_few_steps_or_of_one_prompt_is_not_judged() -> None:
    few = courses.reward_section(inputs_of(run_of(*(group_of([0, 1], step=step) for step in range(9)))))
    assert few.missing == "A course needs 10 steps, there are 9."
    alone = [group_of([0, step > 7], step=step, prompt="one") for step in range(10)]
    assert courses.reward_section(inputs_of(run_of(*alone))).severity == "fine"
    solved = [group_of([step < 8] * 2, step=step, prompt=f"p{n}") for step in range(10) for n in range(12)]
    assert courses.reward_section(inputs_of(run_of(*solved))).severity == "look"  # every prompt by as much


def test_recomputed_changes_of_the_entropy_are_listed_with_the_logged_ones() -> None:
    alone = logged(0.9, 0.7, 0.5, 0.3)
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    run = run_of(*groups, metrics={1: {"entropy": 0.9}, 2: {"entropy": 0.8}})
    change = entropy_change(2)
    section = courses.entropy_section(inputs_of(run, parts=TokenParts(entropy=(change,))))
    assert alone.tables == ()
    assert section.findings[-1] == entropy_findings([change])[0]
    measured = (change.cosine, change.covariance, change.measured)
    assert section.tables[0].rows == ((2, *measured, change.last, change.logged, change.logged_next),)


def test_lags_are_reported_drawn_and_listed() -> None:
    section = courses.staleness_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("The weights that sampled 36 rollouts were 0.33")
    assert "and 1 at most; 0.0 %" in section.findings[0]
    assert section.charts[0].series[1].values == (0.0, 1.0, 1.0)
    lags = section.tables[0].rows
    assert [row[:2] for row in lags] == [(0, 24), (1, 12)]
    assert lags[1][3].value == pytest.approx(0.025)
    assert section.next_step.startswith("Where the gap grows with the lag")


def test_a_lag_without_log_probabilities_asks_for_them() -> None:
    section = courses.staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (0, 0)}, step=4))))
    assert section.next_step.startswith("Log the log-probabilities of sampler and trainer as well")
    assert section.tables[0].caption == "Rollouts by lag"
    assert section.tables[0].rows == ((3, 1, 1.0),)
    assert section.charts == ()
    fresh = courses.staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (3, 3)}, step=4))))
    assert fresh.next_step.startswith("Nothing to do")


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "The log does not say which weights sampled a rollout."),
        ({"policy_versions": (9, 9)}, "The log names weights that are newer than its steps"),
    ],
)
def test_a_log_without_the_data_says_what_to_log(fields: dict[str, object], missing: str) -> None:
    assert courses.staleness_section(inputs_of(run_of(tokens_of(fields)))).missing.startswith(missing)
    bare = inputs_of(run_of(group_of([1, 0])))
    assert courses.staleness_section(bare).missing is not None
    assert courses.entropy_section(bare).missing.startswith("The log has no entropy.")
    assert courses.generation_section(bare).missing.endswith("and generation_seconds.")


def test_generation_says_what_was_cut_off_and_what_is_waited_for() -> None:
    section = courses.generation_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("50.0 %")
    assert section.findings[1] == (
        "A completion takes 1.5 seconds to generate; the slowest of a step takes 1.3 times its mean."
    )
    assert [chart.series[0].values for chart in section.charts] == [(0.5,) * 3, (1.5,) * 3]
    assert section.next_step.startswith("Raise the length limit")
    run = run_of(tokens_of(*({"seconds": seconds} for seconds in (1.0, 1.0, 1.0, 1.0, 30.0))))
    section = courses.generation_section(inputs_of(run))
    assert section.findings[0] == "Truncation is not known: the log does not say which completions were cut off."
    assert section.next_step.startswith("Let generation run ahead")
    assert section.charts == ()
    timed = courses.generation_section(inputs_of(run_of(tokens_of({"seconds": 2.0}, {}))))
    assert timed.findings[1] == "A completion takes 2 seconds to generate."


def test_the_trainers_share_alone() -> None:
    def section_with(share: float, num_steps: int) -> ReportSection:
        metrics = {step: {"completions/clipped_ratio": share} for step in range(1, num_steps + 1)}
        return courses.generation_section(
            inputs_of(run_of(*(group_of([1, 0], step=step) for step in metrics), metrics=metrics))
        )

    section = section_with(0.01, 2)
    assert section.findings == ("1.0 % of completions were cut off at the length limit.",)
    assert section.charts[0].series[0].values == pytest.approx((0.01, 0.01))
    assert section.next_step == "Nothing to do."
    assert section_with(0.0, 11).findings == ("No completion was cut off at the length limit.",)


def group(lengths: tuple[int, ...], rewards: tuple[float, ...], *, step: int = 1, prompt: str = "p") -> RolloutGroup:
    made = group_of(rewards, step=step, prompt=prompt, advantages=[1.0] * len(rewards))
    return with_fields(made, completion=["x" * length for length in lengths])


LENGTHS = ((2, 4, 6, 8), (2, 2, 8, 8))
GROUPS = [group(LENGTHS[n % 2], (0, 0, 1, 1), step=step, prompt=f"p{step}{n}") for step in (1, 2) for n in range(8)]


def test_length_and_reward_correlate_within_groups() -> None:
    section = courses.length_section(inputs_of(run_of(*GROUPS)))
    # around the means of their groups lengths times rewards sum to 4 and 6, lengths squared to 20 and 36, rewards
    # squared to 1: 10 / sqrt(56 * 2)
    assert section.findings[0].startswith("Within groups, length in characters and reward correlate at +0.94 [")
    assert section.findings[0].endswith("longer completions are rewarded more.")
    assert section.findings[2] == "Completions have 5.0 characters on average at step 1 and 5.0 at step 2."
    assert section.next_step.startswith("Read long completions that pass")
    assert [series.values for series in section.charts[0].series] == [(2.5, 2.5), (-2.5, -2.5)]
    with_dead = courses.length_section(inputs_of(run_of(*GROUPS, group((2, 8), (1, 1), step=3, prompt="dead"))))
    assert [series.values[-1] for series in with_dead.charts[0].series] == [None, None]


def test_a_direction_that_is_falling_uncertain_or_small_has_its_own_advice() -> None:
    falling = [group(LENGTHS[n % 2], (1, 1, 0, 0), prompt=f"p{n}") for n in range(8)]
    section = courses.length_section(inputs_of(run_of(*falling)))
    assert section.findings[0].endswith("longer completions are rewarded less.")
    assert section.next_step.startswith("Check that right answers are not cut off")
    assert section.charts == ()
    either = [group((2, 8), (n % 2, 1 - n % 2), prompt=f"p{n}") for n in range(8)]
    section = courses.length_section(inputs_of(run_of(*either)))
    assert section.findings[0].endswith("no direction is certain.")
    assert section.next_step.startswith("Nothing to do")
    shifts = [0.02 + 0.01 * (n % 3) for n in range(60)]
    flat = [group((2, 2, 4, 4), (0, 1, d, 1 + d), prompt=f"p{n}") for n, d in enumerate(shifts)]
    section = courses.length_section(inputs_of(run_of(*flat)))
    assert section.severity == "fine"
    assert section.findings[0].endswith("+0.03 [+0.03, +0.03]: too little to matter.")


def test_equal_rewards_say_nothing_about_length() -> None:
    section = courses.length_section(inputs_of(run_of(group((2, 4), (1, 1)))))
    assert section.findings[0].startswith("Whether length goes with the reward is undefined: ")


@pytest.mark.parametrize(
    ("statuses", "metrics", "finding"),
    [
        (("truncated", "completed"), {}, "1 of 2 completions were cut off at the length limit; they hold 50.0 % of"),
        (("completed", "completed"), {}, "0 of 2 completions were cut off at the length limit."),
        (("unknown", "unknown"), {1: {"completions/clipped_ratio": 0.25}}, "on average 25.0 % of completions were cut"),
        (("unknown", "unknown"), {}, "Which completions were cut off is not in the log."),
    ],
)
def test_truncated_completions_are_counted_or_quoted(
    statuses: tuple[Status, ...], metrics: dict[int, dict[str, float]], finding: str
) -> None:
    made = with_fields(group((2, 4), (1, 0)), status=list(statuses))
    assert finding in courses.length_section(inputs_of(run_of(made, metrics=metrics))).findings[1]


def test_quarters_of_length_have_their_part_of_the_gradient() -> None:
    """Rows 1, 2, 3 and 4 along one direction: parts of a tenth, two, three and four tenths."""
    grams = [gram_of([[1.0], [2.0], [3.0], [4.0]], ["1/p"] * 4)]
    section = courses.length_section(inputs_of(run_of(group((2, 4, 6, 8), (0, 0, 1, 1))), grams=grams))
    rows = section.tables[0].rows
    assert [row[:3] for row in rows] == [
        ("shortest quarter", "-3.0 to -3.0", -0.5),
        ("second", "-1.0 to -1.0", -0.5),
        ("third", "+1.0 to +1.0", 0.5),
        ("longest quarter", "+3.0 to +3.0", 0.5),
    ]
    assert [row[3] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_equal_rewards_have_no_correlation_and_leave_no_rounding() -> None:
    groups = [group((1, 2, 3), (0.1, 0.1, 0.1), prompt="p"), group((4, 5, 7), (0, 0, 1), prompt="q")]
    rows = courses.length_section(inputs_of(run_of(*groups))).tables[0].rows
    assert sum(abs(row[2]) < 1e-9 for row in rows) == sum(str(row[2]) == "0.0" for row in rows) > 0
    rows = courses.length_section(inputs_of(run_of(group((2, 4), (1, 0))))).tables[0].rows
    assert rows[0][3] == Estimate.undefined_because("no gradient was recomputed")
    missing = courses.length_section(inputs_of(run_of(group((0, 0), (1, 0))))).missing
    assert str(missing).startswith("The log has no completions to measure.")


def test_chart_and_table_say_what_the_sentence_says_where_pooling_would_say_the_opposite() -> None:
    """Within each group longer is better; hard prompts, with few passes, have the long completions."""
    easy = [group((10, 12, 12, 12), (0, 1, 1, 1), step=step, prompt=f"e{step}{n}") for step in (1, 2) for n in range(6)]
    hard = [group((90, 90, 90, 96), (0, 0, 0, 1), step=step, prompt=f"h{step}{n}") for step in (1, 2) for n in range(6)]
    section = courses.length_section(inputs_of(run_of(*easy, *hard)))
    assert section.findings[0].endswith("longer completions are rewarded more.")
    above, below = section.charts[0].series
    assert all(high > 0 > low for high, low in zip(above.values, below.values, strict=True))
    rewards = [row[2] for row in section.tables[0].rows]
    assert rewards[0] < 0 < rewards[-1]


def test_a_rollout_is_as_long_as_all_its_sequences() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,) * 4, mask=(True,) * 4)
    full = with_fields(group((0, 0), (1, 0)), completion_ids=(1, 2), earlier=[(before,), ()])
    section = courses.length_section(inputs_of(run_of(full)))
    assert section.findings[2] == "Completions have 4.0 tokens on average."

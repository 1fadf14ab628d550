"""Entropy, staleness and generation as the log has them."""

import math

import pytest

from gradscope.diagnostics.report.sections import policy
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
    return policy.entropy_section(inputs_of(run_of(*groups, metrics=metrics)))


def test_entropies_are_written_and_drawn_where_several_steps_have_numbers() -> None:
    section = policy.entropy_section(inputs_of(drifting_run()))
    assert section.findings[0] == (
        "Entropy is 0.2 nats a token, 0.1 at step 1 and 0.3 at step 3 (each token has its own)."
    )
    assert section.findings[1].startswith("From step 1 to 3 it changes by +0.2 along its line")
    assert section.charts[0].series[0].values == pytest.approx((0.1, 0.2, 0.3))
    section = logged(0.5, float("nan"), 0.25)
    assert section.findings == ("The entropy of the log is not a number: the trainer logged NaN at step 2.",)
    assert section.charts[0].series[0].values == (0.5, None, 0.25)
    section = policy.entropy_section(inputs_of(run_of(tokens_of({"entropies": (0.5,)}))))
    assert section.findings == ("Entropy is 0.5 nats a token (each token has its own).",)
    assert section.charts == ()


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ((0.9, 0.7, 0.5, 0.3), "Watch pass@k along with pass@1"),
        ((0.3, 0.5, 0.7, 0.9), "Read some completions"),
        ((0.80, 0.79, 0.78, 0.77), "Nothing to do"),
        ((0.9, 0.8, 0.7, 0.6), "Nothing to do while it neither halves nor doubles."),
        ((0.3, 0.9, 0.2, 0.8), "Nothing to do"),
    ],
)
def test_what_to_do_follows_from_the_direction(values: tuple[float, ...], advice: str) -> None:
    section = logged(*values)
    assert "(the trainer's own metric entropy)" in section.findings[0]
    assert section.next_step.startswith(advice)
    assert section.severity == ("fine" if advice.startswith("Nothing") else "look")
    assert section.findings[1].endswith("4 steps it changes by +0.24: too few to tell where it goes.") == (
        values[1] > values[2] and values[2] < values[3]
    )


def test_a_level_that_halves_or_doubles_is_told_where_no_line_fits() -> None:
    """An entropy that decays by a factor of 36 was fine: about its line neighbors resemble each other."""
    section = logged(*(0.7 * math.exp(-0.06 * step) for step in range(60)))
    assert section.headline.startswith("The entropy falls from 0.659, its median up to step 3, to 0.0283 at steps 49")
    assert (section.severity, section.next_step[:18]) == ("look", "Watch pass@k along")
    greedy = logged(2.9, 0.5, *[-4.8e-07] * 58)  # as TRL logged it of a run whose weights broke at its second step
    assert greedy.headline == "The entropy falls from 0.5, its median up to step 3, to 0 at steps 49 to 60."
    longer = [group((2 + step, 3 + step), (0, 1), step=step, prompt=f"p{step}") for step in range(30)]
    section = policy.length_section(inputs_of(run_of(*longer)))
    assert section.findings[0].startswith(
        "The mean length in characters rises from 2.5, its median up to step 0, to 29"
    )
    level = [group((9 + step % 2, 9), (0, 1), step=step, prompt=f"p{step}") for step in range(30)]
    assert "length in characters" in policy.length_section(inputs_of(run_of(*level))).findings[0]


def test_recomputed_changes_of_the_entropy_are_listed_with_the_logged_ones() -> None:
    logged_only = logged(0.9, 0.7, 0.5, 0.3)
    groups = [group_of([1, 0], step=step) for step in (1, 2)]
    run = run_of(*groups, metrics={1: {"entropy": 0.9}, 2: {"entropy": 0.8}})
    change = entropy_change(2)
    section = policy.entropy_section(inputs_of(run, parts=TokenParts(entropy=(change,))))
    assert logged_only.tables == ()
    assert section.findings[-1] == entropy_findings([change])[0]
    measured = (change.cosine, change.covariance, change.measured)
    assert section.tables[0].rows == ((2, *measured, change.last, change.logged, change.logged_next),)


def test_lags_are_reported_drawn_and_listed() -> None:
    section = policy.staleness_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("The weights that sampled 36 rollouts were 0.33")
    assert "and 1 at most; 0.0 %" in section.findings[0]
    assert section.charts[0].series[1].values == (0.0, 1.0, 1.0)
    lags = section.tables[0].rows
    assert [row[:2] for row in lags] == [(0, 24), (1, 12)]
    assert lags[1][3].value == pytest.approx(0.025)
    assert section.next_step.startswith("Where the gap grows with the lag")
    # a lag without log probabilities asks for them
    section = policy.staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (0, 0)}, step=4))))
    assert section.next_step.startswith("Log the log-probabilities of sampler and trainer as well")
    assert section.tables[0].caption == "Rollouts by lag"
    assert section.tables[0].rows == ((3, 1, 1.0),)
    assert section.charts == ()
    fresh = policy.staleness_section(inputs_of(run_of(tokens_of({"policy_versions": (3, 3)}, step=4))))
    assert fresh.next_step.startswith("Nothing to do")


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({}, "The log does not say which weights sampled a rollout."),
        ({"policy_versions": (9, 9)}, "The log names weights that are newer than its steps"),
    ],
)
def test_a_log_without_the_data_says_what_to_log(fields: dict[str, object], missing: str) -> None:
    assert policy.staleness_section(inputs_of(run_of(tokens_of(fields)))).missing.startswith(missing)
    bare = inputs_of(run_of(group_of([1, 0])))
    assert policy.staleness_section(bare).missing is not None
    assert policy.entropy_section(bare).missing.startswith("The log has no entropy.")
    assert policy.generation_section(bare).missing.endswith("and generation_seconds.")


def test_generation_says_what_was_cut_off_and_what_is_waited_for() -> None:
    section = policy.generation_section(inputs_of(drifting_run()))
    assert section.findings[0].startswith("50.0 %")
    assert section.findings[1] == (
        "A completion takes 1.5 seconds to generate; the slowest of a step takes 1.3 times its mean."
    )
    assert [chart.series[0].values for chart in section.charts] == [(0.5,) * 3, (1.5,) * 3]
    assert section.next_step.startswith("Raise the length limit")
    run = run_of(tokens_of(*({"seconds": seconds} for seconds in (1.0, 1.0, 1.0, 1.0, 30.0))))
    section = policy.generation_section(inputs_of(run))
    assert section.findings[0] == "Truncation is not known: the log does not say which completions were cut off."
    assert section.next_step.startswith("Let generation run ahead")
    assert section.charts == ()
    timed = policy.generation_section(inputs_of(run_of(tokens_of({"seconds": 2.0}, {}))))
    assert timed.findings[1] == "A completion takes 2 seconds to generate."


def test_the_trainers_share_alone() -> None:
    def section_with(share: float, num_steps: int) -> ReportSection:
        metrics = {step: {"completions/clipped_ratio": share} for step in range(1, num_steps + 1)}
        return policy.generation_section(
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
    section = policy.length_section(inputs_of(run_of(*GROUPS)))
    # around the means of their groups lengths times rewards sum to 4 and 6, lengths squared to 20 and 36, rewards
    # squared to 1: 10 / sqrt(56 * 2)
    assert section.findings[0].startswith("Within groups, length in characters and reward correlate at +0.94 [")
    assert section.findings[0].endswith("longer completions are rewarded more.")
    assert section.findings[2] == "Completions have 5.0 characters on average at step 1 and 5.0 at step 2."
    assert section.next_step.startswith("Read long completions that pass")
    assert [series.values for series in section.charts[0].series] == [(2.5, 2.5), (-2.5, -2.5)]
    with_dead = policy.length_section(inputs_of(run_of(*GROUPS, group((2, 8), (1, 1), step=1 << 61, prompt="dead"))))
    assert [series.values[-1] for series in with_dead.charts[0].series] == [None, None]


def test_a_direction_that_is_falling_uncertain_or_small_has_its_own_advice() -> None:
    falling = [group(LENGTHS[n % 2], (1, 1, 0, 0), prompt=f"p{n}") for n in range(8)]
    section = policy.length_section(inputs_of(run_of(*falling)))
    assert section.findings[0].endswith("longer completions are rewarded less.")
    assert section.next_step.startswith("Check that right answers are not cut off")
    assert section.charts == ()
    either = [group((2, 8), (n % 2, 1 - n % 2), prompt=f"p{n}") for n in range(8)]
    section = policy.length_section(inputs_of(run_of(*either)))
    assert section.findings[0].endswith("no direction is certain.")
    assert section.next_step.startswith("Nothing to do")
    shifts = [0.02 + 0.01 * (n % 3) for n in range(60)]
    flat = [group((2, 2, 4, 4), (0, 1, d, 1 + d), prompt=f"p{n}") for n, d in enumerate(shifts)]
    section = policy.length_section(inputs_of(run_of(*flat)))
    assert section.severity == "fine"
    assert section.findings[0].endswith("+0.03 [+0.03, +0.03]: too little to matter.")


@pytest.mark.parametrize(
    ("statuses", "finding"),
    [
        (("truncated", "completed"), "1 of 2 completions were cut off at the length limit; they hold 50.0 % of"),
        (("completed", "completed"), "0 of 2 completions were cut off at the length limit."),
        (("unknown", "unknown"), "Which completions were cut off is not in the log."),
    ],
)
def test_truncated_completions_are_counted(statuses: tuple[Status, ...], finding: str) -> None:
    made = with_fields(group((2, 4), (1, 0)), status=list(statuses))
    assert finding in policy.length_section(inputs_of(run_of(made))).findings[1]


def test_quarters_of_length_have_their_part_of_the_gradient() -> None:
    """Rows 1, 2, 3 and 4 along one direction: parts of a tenth, two, three and four tenths."""
    grams = [gram_of([[1.0], [2.0], [3.0], [4.0]], ["1/p"] * 4)]
    section = policy.length_section(inputs_of(run_of(group((2, 4, 6, 8), (0, 0, 1, 1))), grams=grams))
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
    rows = policy.length_section(inputs_of(run_of(*groups))).tables[0].rows
    assert sum(abs(row[2]) < 1e-9 for row in rows) == sum(str(row[2]) == "0.0" for row in rows) > 0
    rows = policy.length_section(inputs_of(run_of(group((2, 4), (1, 0))))).tables[0].rows
    assert rows[0][3] == Estimate.undefined_because("no gradient was recomputed")
    equal = policy.length_section(inputs_of(run_of(group((2, 4), (1, 1)))))
    assert equal.findings[0].startswith("Whether length goes with the reward is undefined: ")
    missing = policy.length_section(inputs_of(run_of(group((0, 0), (1, 0))))).missing
    assert str(missing).startswith("The log has no completions to measure.")


def test_empty_completions_come_first_and_make_no_correlation() -> None:
    """That they fail was "longer completions are rewarded more: try a length penalty"."""
    groups = [group((0, 0, 8, 9), (0, 0, 1, 0), prompt=f"p{index}") for index in range(8)]
    section = policy.length_section(inputs_of(run_of(*groups)))
    assert section.findings[0] == "50.0 % of completions are empty."
    assert "correlate at -1.00" in section.findings[1]
    assert section.severity == "look"
    assert section.next_step.startswith("Look at what failed there")
    few = policy.length_section(inputs_of(run_of(*(group((9, 9), (0, 1), prompt=f"p{index}") for index in range(25)))))
    assert "empty" not in few.findings[0]


def test_chart_and_table_say_what_the_sentence_says_where_pooling_would_say_the_opposite() -> None:
    """Within each group longer is better; hard prompts, with few passes, have the long completions."""
    easy = [group((10, 12, 12, 12), (0, 1, 1, 1), step=step, prompt=f"e{step}{n}") for step in (1, 2) for n in range(6)]
    hard = [group((90, 90, 90, 96), (0, 0, 0, 1), step=step, prompt=f"h{step}{n}") for step in (1, 2) for n in range(6)]
    section = policy.length_section(inputs_of(run_of(*easy, *hard)))
    assert section.findings[0].endswith("longer completions are rewarded more.")
    above, below = section.charts[0].series
    assert all(high > 0 > low for high, low in zip(above.values, below.values, strict=True))
    rewards = [row[2] for row in section.tables[0].rows]
    assert rewards[0] < 0 < rewards[-1]


def test_a_rollout_is_as_long_as_all_its_sequences() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,) * 4, mask=(True,) * 4)
    full = with_fields(group((0, 0), (1, 0)), completion_ids=(1, 2), earlier=[(before,), ()])
    section = policy.length_section(inputs_of(run_of(full)))
    assert section.findings[2] == "Completions have 4.0 tokens on average."


def test_a_share_that_is_cut_off_at_the_end_is_told() -> None:
    """A length that explodes: 19 % [0 %, 76 %] of all were cut off, and at the end 60 %."""
    metrics = {step: {"completions/clipped_ratio": 0.0 if step < 40 else 0.45} for step in range(50)}
    run = run_of(*(group_of([1, 0], step=step) for step in metrics), metrics=metrics)
    section = policy.generation_section(inputs_of(run))
    assert (
        section.headline == "9.0 % of completions were cut off at the length limit, 45.0 % in the last fifth of steps."
    )
    assert section.severity == "look"

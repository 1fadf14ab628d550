from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.report.sections.length import length_section
from gradscope.estimate import Estimate
from gradscope.rollouts.groups import RolloutGroup, Status, Tokens
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of


def group(lengths: tuple[int, ...], rewards: tuple[float, ...], *, step: int = 1, prompt: str = "p") -> RolloutGroup:
    made = group_of(rewards, step=step, prompt=prompt, advantages=[1.0] * len(rewards))
    rollouts = zip(made.rollouts, lengths, strict=True)
    return replace(made, rollouts=tuple(replace(r, completion="x" * length) for r, length in rollouts))


LENGTHS = ((2, 4, 6, 8), (2, 2, 8, 8))
GROUPS = [group(LENGTHS[n % 2], (0, 0, 1, 1), step=step, prompt=f"p{step}{n}") for step in (1, 2) for n in range(8)]


def test_length_and_reward_correlate_within_groups() -> None:
    section = length_section(inputs_of(run_of(*GROUPS)))
    # around the means of their groups lengths times rewards sum to 4 and 6, lengths squared to 20 and 36, rewards
    # squared to 1: 10 / sqrt(56 * 2)
    assert section.findings[0].startswith("Within groups, length in characters and reward correlate at +0.94 [")
    assert section.findings[0].endswith("longer completions are rewarded more.")
    assert section.findings[2] == "Completions have 5.0 characters on average at step 1 and 5.0 at step 2."
    assert section.next_step.startswith("Read long completions that pass")
    assert [series.values for series in section.charts[0].series] == [(2.5, 2.5), (-2.5, -2.5)]


def test_short_answers_that_pass_ask_for_another_remedy() -> None:
    falling = [group(LENGTHS[n % 2], (1, 1, 0, 0), prompt=f"p{n}") for n in range(8)]
    section = length_section(inputs_of(run_of(*falling)))
    assert section.findings[0].endswith("longer completions are rewarded less.")
    assert section.next_step.startswith("Check that right answers are not cut off")
    assert section.charts == ()


def test_no_direction_is_claimed_where_the_interval_holds_zero() -> None:
    either = [group((2, 8), (n % 2, 1 - n % 2), prompt=f"p{n}") for n in range(8)]
    section = length_section(inputs_of(run_of(*either)))
    assert section.findings[0].endswith("no direction is certain.")
    assert section.next_step.startswith("Nothing to do while the interval holds zero.")


def test_equal_rewards_say_nothing_about_length() -> None:
    section = length_section(inputs_of(run_of(group((2, 4), (1, 1)))))
    assert section.findings[0].startswith("Whether length goes with the reward is undefined: ")


@pytest.mark.parametrize(
    ("statuses", "metrics", "finding"),
    [
        (("truncated", "completed"), {}, "1 of 2 completions were cut off at the length limit; they hold 50.0 % of"),
        (("completed", "completed"), {}, "0 of 2 completions were cut off at the length limit."),
        (("unknown", "unknown"), {1: {"completions/clipped_ratio": 0.25}}, "on average 25.0 % of completions were cut"),
        (("unknown", "unknown"), {}, "Which completions were cut off is not in the log."),
        (("unknown", "error"), {}, "Which completions were cut off is not in the log."),
    ],
)
def test_what_was_cut_off_is_counted_or_quoted(
    statuses: tuple[Status, ...], metrics: dict[int, dict[str, float]], finding: str
) -> None:
    made = group((2, 4), (1, 0))
    rollouts = tuple(replace(r, status=status) for r, status in zip(made.rollouts, statuses, strict=True))
    section = length_section(inputs_of(run_of(replace(made, rollouts=rollouts), metrics=metrics)))
    assert finding in section.findings[1]


def test_quarters_of_length_have_their_part_of_the_gradient() -> None:
    """Rows 1, 2, 3 and 4 along one direction: parts of a tenth, two, three and four tenths."""
    grams = [gram_of([[1.0], [2.0], [3.0], [4.0]], ["1/p"] * 4)]
    section = length_section(inputs_of(run_of(group((2, 4, 6, 8), (0, 0, 1, 1))), grams=grams))
    rows = section.tables[0].rows
    assert [row[:3] for row in rows] == [
        ("shortest quarter", "-3.0 to -3.0", -0.5),
        ("second", "-1.0 to -1.0", -0.5),
        ("third", "+1.0 to +1.0", 0.5),
        ("longest quarter", "+3.0 to +3.0", 0.5),
    ]
    assert [row[3] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_equal_rewards_leave_no_rounding_behind() -> None:
    groups = [group((1, 2, 3), (0.1, 0.1, 0.1), prompt="p"), group((4, 5, 7), (0, 0, 1), prompt="q")]
    rows = length_section(inputs_of(run_of(*groups))).tables[0].rows
    assert sum(abs(row[2]) < 1e-9 for row in rows) == sum(str(row[2]) == "0.0" for row in rows) > 0


def test_without_gradients_the_parts_are_undefined_and_without_text_the_section() -> None:
    rows = length_section(inputs_of(run_of(group((2, 4), (1, 0))))).tables[0].rows
    assert rows[0][3] == Estimate.undefined_because("no gradient was recomputed")
    missing = length_section(inputs_of(run_of(group((0, 0), (1, 0))))).missing
    assert str(missing).startswith("The log has no completions to measure.")


def test_chart_and_table_say_what_the_sentence_says_where_pooling_would_say_the_opposite() -> None:
    """Within each group longer is better; hard prompts, with few passes, have the long completions."""
    easy = [group((10, 12, 12, 12), (0, 1, 1, 1), step=step, prompt=f"e{step}{n}") for step in (1, 2) for n in range(6)]
    hard = [group((90, 90, 90, 96), (0, 0, 0, 1), step=step, prompt=f"h{step}{n}") for step in (1, 2) for n in range(6)]
    section = length_section(inputs_of(run_of(*easy, *hard)))
    assert section.findings[0].endswith("longer completions are rewarded more.")
    above, below = section.charts[0].series
    assert all(high > 0 > low for high, low in zip(above.values, below.values, strict=True))
    rewards = [row[2] for row in section.tables[0].rows]
    assert rewards[0] < 0 < rewards[-1]  # type: ignore[operator]


def test_a_step_without_unequal_rewards_has_no_place_in_the_chart() -> None:
    section = length_section(inputs_of(run_of(*GROUPS, group((2, 8), (1, 1), step=3, prompt="dead"))))
    assert [series.values[-1] for series in section.charts[0].series] == [None, None]


def test_a_rollout_is_as_long_as_all_its_sequences() -> None:
    before = Tokens(prompt_ids=(5,), completion_ids=(7,) * 4, mask=(True,) * 4)
    made = group((0, 0), (1, 0))
    rollouts = (replace(made.rollouts[0], completion_ids=(1, 2), earlier=(before,)), made.rollouts[1])
    whole = replace(made, rollouts=tuple(replace(one, completion_ids=(1, 2)) for one in rollouts))
    section = length_section(inputs_of(run_of(whole)))
    assert section.findings[2] == "Completions have 4.0 tokens on average."

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.report.sections.signal import MOST_PROMPTS, dead_groups, signal_section
from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import dead_group_advice
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.rollouts.groups import RewardTable
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import inputs_of
from tests.render.examples import degeneracy_report


@pytest.mark.parametrize(
    ("rewards", "is_dead"),
    [([1, 1], True), ([0.5, 0.5 + 1e-9], True), ([1, 0], False), ([1, None], False), ([1], False)],
)
def test_a_group_is_dead_where_all_its_rewards_are_known_and_equal(rewards: list[float], is_dead: bool) -> None:
    assert bool(dead_groups(RewardTable.of_groups([group_of(rewards)])).all()) == is_dead


def with_course(*shares: float) -> DegeneracyReport:
    report = degeneracy_report(num_steps=len(shares))
    zero = Estimate.exact(0.0)
    kinds = {"frac_all_fail": zero, "frac_all_pass": zero, "frac_tied": zero}
    rows = zip(report.by_step, shares, strict=True)
    steps = tuple(replace(row, frac_reward_zero_std=Estimate.exact(share), **kinds) for row, share in rows)
    return replace(report, by_step=steps, findings=("First.", "Second."))


def trend_of(*shares: float) -> tuple[str, ...]:
    return signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=with_course(*shares))).findings


def test_the_trend_stands_second_with_its_direction() -> None:
    first, trend, last = trend_of(0.1, 0.2, 0.31, 0.4)
    assert (first, last) == ("First.", "Second.")
    assert trend.startswith("From step 1 to 4 the share changes by +30.3 points along its line [+")
    assert "undecided" not in trend
    assert trend_of(0.1, 0.6, 0.1, 0.6)[1].endswith("so its direction is undecided.")


def test_a_share_cannot_change_by_more_than_all_groups() -> None:
    assert trend_of(1.0, 0.0, 1.0)[1] == (
        "From step 1 to 3 the share changes by +0.0 points along its line [-100.0, +100.0], so its direction is "
        "undecided."
    )


def test_a_page_shows_the_first_prompts_and_cuts_long_ones() -> None:
    groups = [group_of([0, 0], prompt=f"{n:03}" + "x" * 100) for n in range(220)]
    run = run_of(*groups)
    prompts = signal_section(inputs_of(run, degeneracy=degeneracy_of_run(run))).tables[1]
    assert len(prompts.rows) == MOST_PROMPTS
    assert "20 more prompts" in prompts.caption
    assert len(str(prompts.rows[0][0])) == 80


def test_groups_that_side_rewards_decide_are_a_problem() -> None:
    report = replace(degeneracy_report(), frac_reward_conflict=Estimate.exact(0.6))
    assert signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=report)).severity == "problem"


def test_the_trend_stands_behind_the_share_that_it_is_of_and_advice_is_said_once() -> None:
    report = with_course(0.1, 0.2, 0.3, 0.4)
    advice = dead_group_advice(replace(report, frac_reward_conflict=Estimate.exact(0.6)))
    report = replace(
        report,
        frac_reward_conflict=Estimate.exact(0.6),
        findings=("One decides.", advice, "So many are dead.", "More."),
    )
    section = signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=report))
    assert [text.split()[0] for text in section.findings] == ["One", "So", "From", "More."]
    assert section.next_step == advice


def test_a_share_that_never_moves_has_no_trend() -> None:
    assert trend_of(0.0, 0.0, 0.0, 0.0) == ("First.", "Second.")


def test_two_steps_have_no_trend() -> None:
    assert trend_of(0.1, 0.2) == ("First.", "Second.")


def test_kinds_are_stacked_where_there_are_any_else_equal_rewards() -> None:
    run = run_of(group_of([1, 0]))
    (chart,) = signal_section(inputs_of(run, degeneracy=degeneracy_report())).charts
    assert [series.name for series in chart.series] == ["all fail", "all pass"]
    (chart,) = signal_section(inputs_of(run, degeneracy=with_course(0.25, 0.5))).charts
    assert [(series.name, series.values) for series in chart.series] == [("equal rewards", (0.25, 0.5))]


def test_a_single_step_has_one_table_and_no_chart() -> None:
    section = signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=degeneracy_report(num_steps=1)))
    assert section.charts == ()
    kinds, environments, prompts = section.tables
    assert environments.columns[0].title == "environment"
    assert prompts.rows[1] == ("p2", 30, 240, 1.0, "always", 1, None)
    assert kinds.rows[0][0] == "degenerate groups"
    assert kinds.rows[0][1].value == 0.4125


@pytest.mark.parametrize(
    ("all_pass", "all_fail", "advice"),
    [
        (0.4, 0.0, "Most of them pass throughout: try harder prompts"),
        (0.0, 0.4, "Most of them fail throughout: try easier prompts"),
        (0.2, 0.2, "Some are too hard and some too easy"),
        (0.0, 0.0, "Nothing to do"),
    ],
)
def test_what_to_do_follows_from_the_kinds(all_pass: float, all_fail: float, advice: str) -> None:
    kinds = {"frac_all_pass": all_pass, "frac_all_fail": all_fail, "frac_reward_zero_std": all_pass + all_fail}
    estimates = {name: Estimate.exact(value) for name, value in kinds.items()}
    report = replace(degeneracy_report(), reward_conflict=None, **estimates)
    section = signal_section(inputs_of(run_of(group_of([1, 0])), degeneracy=report))
    assert section.next_step.startswith(advice)

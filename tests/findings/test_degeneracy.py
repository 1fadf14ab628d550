from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import LoggedGroups, dead_group_advice, degeneracy_findings
from gradscope.results.degeneracy import DegeneracyReport, GapDecomposition
from gradscope.results.source import LOWER_BOUND
from tests.render.examples import HOSTILE, degeneracy_report

LOG = LoggedGroups(num_levels=2, reward_functions=("acc",), num_singletons=0, num_incomplete=0, resampled=False)


def said(report: DegeneracyReport, log: LoggedGroups = LOG) -> str:
    return " ".join(degeneracy_findings(report, log, None))


def with_kinds(all_pass: float, all_fail: float) -> DegeneracyReport:
    kinds = {"frac_all_pass": all_pass, "frac_all_fail": all_fail, "frac_reward_zero_std": all_pass + all_fail}
    estimates = {name: Estimate.exact(value) for name, value in kinds.items()}
    return replace(degeneracy_report(), frac_tied=Estimate.exact(0.0), reward_conflict=None, **estimates)


def test_a_conflict_of_many_groups_comes_first_and_one_of_few_after_the_share() -> None:
    few = degeneracy_report()
    many = replace(few, frac_reward_conflict=Estimate.exact(0.6))
    places = [
        [text.startswith(f"'{HOSTILE}' alone decides") for text in degeneracy_findings(one, LOG, None)].index(True)
        for one in (few, many)
    ]
    assert (places[0] > 0, places[1]) == (True, 0)
    assert dead_group_advice(many).startswith('Try scale_rewards="none"')
    assert not dead_group_advice(few).startswith("Try scale_rewards")
    none_dead = replace(few, frac_reward_zero_std=Estimate.exact(0.0))
    assert dead_group_advice(none_dead).startswith('Try scale_rewards="none"')
    assert "0 of 160 groups (0.0 %) have equal rewards." in degeneracy_findings(none_dead, LOG, None)


def test_the_first_sentence_counts_groups_and_their_kinds() -> None:
    sentence = degeneracy_findings(degeneracy_report(), LOG, None)[0]
    assert sentence == (
        "66 of 160 groups (41.2 % [33.1 %, 48.8 %]) have equal rewards and give a group-mean baseline no gradient: "
        "26 all pass, 40 all fail."
    )


def test_live_groups_only_need_no_advice() -> None:
    text = said(with_kinds(0.0, 0.0))
    assert text.startswith("0 of 160 groups (0.0 %) have equal rewards: each of them gives a group-mean baseline a")
    assert "try" not in text


@pytest.mark.parametrize(
    ("all_pass", "counted", "said_so"), [(0.0, False, True), (0.5, False, False), (0.0, True, False)]
)
def test_a_filter_may_have_hidden_dead_groups_where_the_log_has_none(
    all_pass: float, counted: bool, said_so: bool
) -> None:
    report = with_kinds(all_pass, 0.0)
    unknown = Estimate.undefined_because("nothing was counted")
    behind = report.behind_filter if counted else replace(report.behind_filter, frac_zero_std_sampled=unknown)
    filtered = f"dynamic sampling drops dead groups; {LOWER_BOUND}"
    source = replace(report.source, missing=("The log holds no text.", filtered))
    text = said(replace(report, behind_filter=behind, source=source))
    assert (filtered in text) == said_so
    assert "holds no text" not in text


def test_the_gap_is_split_over_several_steps() -> None:
    assert (
        "the gap is +40.4 [+32.0, +48.0] points, 47 [31, 61] times the prediction: +39.0 [+31.0, +46.0] from groups "
        "that differ within a step and +1.4 [-0.4, +3.2] from a pass rate that moves between steps."
    ) in said(degeneracy_report(num_steps=2))


def test_a_single_step_has_nothing_to_move_between() -> None:
    text = said(degeneracy_report(num_steps=1))
    assert "the gap is +40.4 [+32.0, +48.0] points, 47 [31, 61] times the prediction." in text
    assert "from groups that differ within a step" not in text


def test_a_gap_over_a_prediction_of_zero_has_no_ratio() -> None:
    report = replace(degeneracy_report(num_steps=1), relative_gap=Estimate.undefined_because("it is relative to zero"))
    assert "the gap is +40.4 [+32.0, +48.0] points." in said(report)
    small = replace(report, relative_gap=Estimate(value=0.062, low=-0.01, high=0.134))
    assert "[+32.0, +48.0] points, 0.062 [-0.01, 0.13] times the prediction." in said(small)
    fewer = replace(small, jensen_gap=Estimate(value=-0.5, low=-0.8, high=0.2))
    assert "the gap is -50.0 [-80.0, +20.0] points." in said(fewer)


@pytest.mark.parametrize("part", ["between_prompts", "over_time"])
def test_a_gap_without_one_of_its_parts_is_not_split(part: str) -> None:
    report = degeneracy_report(num_steps=3)
    parts = {
        "between_prompts": Estimate.exact(0.3),
        "over_time": Estimate.exact(0.1),
        part: Estimate.undefined_because("no"),
    }
    assert "47 [31, 61] times the prediction." in said(replace(report, gap_decomposition=GapDecomposition(**parts)))


def test_an_undefined_prediction_says_why() -> None:
    report = replace(degeneracy_report(), iid_prediction=Estimate.undefined_because("rewards have three levels"))
    assert "Pass rate and prediction are undefined: rewards have three levels." in said(report)


@pytest.mark.parametrize(
    ("all_pass", "all_fail", "advice"),
    [
        (0.1, 0.4, "Most of them fail throughout"),
        (0.4, 0.1, "Most of them pass throughout"),
        (0.2, 0.4, "Some are too hard and some too easy"),
        (0.4, 0.2, "Some are too hard and some too easy"),
    ],
)
def test_advice_follows_the_kind_of_most_dead_groups(all_pass: float, all_fail: float, advice: str) -> None:
    assert advice in said(with_kinds(all_pass, all_fail))


def test_without_a_threshold_the_advice_is_to_name_one() -> None:
    unknown = Estimate.undefined_because("no threshold")
    report = replace(degeneracy_report(), frac_all_pass=unknown, frac_all_fail=unknown)
    assert "say what counts as a pass (--success-threshold)." in said(report)
    several = replace(LOG, reward_functions=("acc", "format"))
    assert "or look at one reward function alone (acc, format)." in said(report, several)


def test_resampled_groups_are_said_and_get_no_advice() -> None:
    text = said(degeneracy_report(), replace(LOG, resampled=True))
    assert "Dead groups were replaced before they reached this log" in text
    assert "try" not in text
    assert "Resampling dead groups" not in text


def test_levels_between_pass_and_fail_are_pointed_out() -> None:
    assert "The rewards have 3 levels" in said(degeneracy_report(), replace(LOG, num_levels=3))
    assert "levels" not in said(degeneracy_report())


def test_the_trainers_own_share_is_compared_where_it_was_logged() -> None:
    report = degeneracy_report()
    assert "is the same at each of the 19 steps compared." in said(report)
    first, *others = report.by_step
    own = first.frac_reward_zero_std.value
    fewer = replace(report, by_step=(replace(first, logged=own - 0.25), *others))
    more = replace(report, by_step=(replace(first, logged=own + 0.25), *others))
    assert f"At 1 of 19 steps the trainer logged another frac_reward_zero_std, first at step 1: {own - 0.25:.4f}" in (
        said(fewer)
    )
    assert "misses groups of equal fractional rewards" in said(fewer)
    assert "The log may lack rows of the groups that differed" in said(more)
    broken = said(replace(report, by_step=(replace(first, logged=float("nan")), *others)))
    assert "first at step 1: NaN, here" in broken
    assert "the trainer's own number is broken" in broken
    silent = replace(report, by_step=tuple(replace(row, logged=None) for row in report.by_step))
    assert "trainer" not in said(silent)


def test_what_is_left_out_is_counted() -> None:
    text = said(degeneracy_report(), replace(LOG, num_singletons=2, num_incomplete=3))
    assert "Groups left out: 2 with a single rollout and 3 with a missing reward. " in text


def test_groups_tied_between_pass_and_fail_ask_for_finer_rewards() -> None:
    tied = replace(with_kinds(0.05, 0.05), frac_reward_zero_std=Estimate.exact(0.5), frac_tied=Estimate.exact(0.4))
    assert dead_group_advice(tied).startswith(
        "Most of them are tied between pass and fail: try a reward with finer steps"
    )
    assert dead_group_advice(with_kinds(0.0, 0.0)) == "Nothing to do: none of these groups was without a gradient."

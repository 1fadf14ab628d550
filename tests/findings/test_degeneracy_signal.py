from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.estimate import Estimate
from gradscope.findings.degeneracy_signal import (
    conflict_findings,
    conflicts_of_runs,
    cost_finding,
    dispersion_finding,
    policy_finding,
    remedy_finding,
    reward_findings,
    signed_percent,
    target_finding,
)
from gradscope.results.degeneracy import GroupSizeDegeneracy
from gradscope.results.signal import SideRewards
from tests.render.examples import HOSTILE, degeneracy_report

REPORT = degeneracy_report()
ALIVE = replace(
    REPORT,
    frac_reward_zero_std=Estimate.exact(0.0),
    starvation=replace(REPORT.starvation, frac_rollouts=Estimate.exact(0.0)),
)
NOTHING = Estimate.undefined_because("nothing is known")


def size(group_size: int, degeneracy: Estimate, method: str = "forecast") -> GroupSizeDegeneracy:
    return GroupSizeDegeneracy(
        group_size=group_size,
        degeneracy=degeneracy,
        iid_prediction=NOTHING,
        jensen_gap=NOTHING,
        method=method,  # type: ignore[arg-type]
    )


def test_the_cost_names_what_was_measured() -> None:
    assert cost_finding(REPORT) == (
        "Signal lost: 41.2 % of rollouts and 52.0 % of generation time; of 64 rollouts a step 37.6 count."
    )
    assert cost_finding(ALIVE) == ""


@pytest.mark.parametrize(
    ("z", "p_value", "words"),
    [
        (21.5, 0.0005, "Chance does not explain them: the groups of a step differ in pass rate (z = 21.5, p < 0.001"),
        (
            0.4,
            0.3,
            "groups of a step differ in pass rate cannot be told: one rate for all is not refuted (z = 0.4",
        ),
        (-3.5, 0.0005, "a filter may have dropped dead groups before they were logged"),
    ],
)
def test_prompts_differ_or_it_cannot_be_told(z: float, p_value: float, words: str) -> None:
    tested = replace(REPORT.overdispersion, z=Estimate.exact(z), p_value=Estimate.exact(p_value))
    assert words in dispersion_finding(replace(REPORT, overdispersion=tested))


def test_prompts_differ_only_where_they_return() -> None:
    returning = dispersion_finding(REPORT)
    assert returning.endswith(
        ". Where prompts return, 0.121 [0.091, 0.151] of the variance stays with the prompt and 0.004 [0.000, 0.024] "
        "is of the visit."
    )
    once = replace(REPORT.overdispersion, between_prompts=NOTHING, between_visits=NOTHING)
    said = dispersion_finding(replace(REPORT, overdispersion=once))
    assert said.endswith(
        ", by their prompts or by what the rollouts of a group share: only prompts that return would tell."
    )
    assert "prompts of a step differ" not in returning + said


@pytest.mark.parametrize(
    ("variance", "end"),
    [
        (Estimate(value=0.01, low=-0.01, high=0.0225), "), nor is a standard deviation of 0.15 between pass rates."),
        (Estimate(value=-0.02, low=-0.03, high=-0.01), "), nor is a standard deviation of 0.00 between pass rates."),
        (Estimate.exact(0.01), "p = 0.3, 1999 deals of the outcomes within steps)."),
    ],
)
def test_what_is_not_refuted_comes_with_what_is_not_excluded(variance: Estimate, end: str) -> None:
    tested = replace(REPORT.overdispersion, z=Estimate.exact(0.4), p_value=Estimate.exact(0.3), rate_variance=variance)
    assert dispersion_finding(replace(REPORT, overdispersion=tested)).endswith(end)


def test_an_untested_hypothesis_is_not_spoken_of() -> None:
    tested = replace(REPORT.overdispersion, z=NOTHING)
    assert dispersion_finding(replace(REPORT, overdispersion=tested)) == ""


def test_remedies_stand_beside_each_other() -> None:
    doubled = size(16, Estimate(value=0.3, low=0.0002, high=0.4))
    assert remedy_finding(REPORT, doubled) == (
        "Resampling dead groups until the batch is full takes 1.70 times the rollouts; groups of 16 take twice as many "
        "and are forecast to leave 30.0 % [<0.1 %, 40.0 %] dead."
    )
    alone = "Resampling dead groups until the batch is full takes 1.70 times the rollouts."
    assert remedy_finding(REPORT, None) == remedy_finding(REPORT, size(16, NOTHING)) == alone
    assert remedy_finding(ALIVE, doubled) == ""
    hopeless = replace(
        REPORT, starvation=replace(REPORT.starvation, resampling_factor=Estimate.undefined_because("none lives"))
    )
    assert remedy_finding(hopeless, doubled) == "Resampling dead groups would not help: none lives."


def test_a_target_names_both_ways_or_why_there_is_none() -> None:
    assert target_finding(REPORT) == (
        "At most 20.0 % dead groups: by larger groups not within reach (no group size up to 8 times 8 is known to "
        "bring the share to 0.2); or 10.9 rollouts sampled for each group by resampling."
    )
    assert target_finding(replace(REPORT, target=None)) == ""


def test_a_target_that_is_met_needs_nothing() -> None:
    now, *others = REPORT.target.plans
    met = replace(REPORT.target, plans=(replace(now, degeneracy=Estimate.exact(0.2)), *others))
    assert target_finding(replace(REPORT, target=met)) == "At most 20.0 % dead groups: already so at G = 8."


def test_plans_say_what_they_cost_in_tokens() -> None:
    now, larger, resampling = REPORT.target.plans
    larger = replace(larger, group_size=32, degeneracy=Estimate.exact(0.1), tokens_per_group=Estimate.exact(4800.0))
    unable = Estimate.undefined_because("no group is alive")
    plans = (now, larger, replace(resampling, rollouts_per_group=unable))
    text = target_finding(replace(REPORT, target=replace(REPORT.target, plans=plans)))
    assert "G = 32 (forecast, 4,800 tokens a group)" in text
    assert "by resampling not possible (no group is alive)" in text
    plans = (now, larger, replace(resampling, tokens_per_group=Estimate.exact(1200.0)))
    text = target_finding(replace(REPORT, target=replace(REPORT.target, plans=plans)))
    assert text.endswith("or 10.9 rollouts sampled for each group by resampling (1,200 tokens a group).")


def test_reward_functions_are_ranked_by_what_they_tie() -> None:
    functions, shares, rescuable = reward_findings(REPORT)
    assert functions == (
        "By reward function: 'format' is tied in 20.0 % of groups and makes 82.0 % of the squared advantage; "
        f"'{HOSTILE}' is tied in 90.0 % of groups and makes 18.0 % of the squared advantage."
    )
    assert shares == "Shares of the squared advantage are of the logged advantages."
    assert rescuable == (
        f"'format' differs within 41 groups that '{HOSTILE}' leaves equal: with a weight for it they would have a "
        "gradient, its own."
    )
    without = tuple(replace(one, advantage_share=NOTHING, difference_share=NOTHING) for one in REPORT.by_reward)
    alone = reward_findings(replace(REPORT, by_reward=without, reward_conflict=None))[1]
    assert alone == f"Alone in telling rollouts of a group apart: '{HOSTILE}' in 3, 'format' in 70 groups."
    raw = tuple(replace(one, advantage_share=NOTHING) for one in REPORT.by_reward)
    assert "makes 18.0 % of the squared reward differences; " in reward_findings(replace(REPORT, by_reward=raw))[0]
    assert reward_findings(replace(REPORT, by_reward=())) == ()


def test_shares_that_pull_against_the_others_keep_their_sign() -> None:
    assert (signed_percent(-0.25), signed_percent(0.25)) == ("-25.0 %", "25.0 %")


def test_a_conflict_says_who_decides_and_what_to_do() -> None:
    conflict = REPORT.reward_conflict
    assert conflict is not None
    assert conflict_findings(conflict) == (
        f"'{HOSTILE}' alone decides 20.0 % [15.0 %, 25.0 %] of the groups: 'correct' is tied in these 40, which hold "
        "30.0 % of all squared advantages.",
        'Try scale_rewards="none": these groups then have 0.4 % of all squared advantages. Or give '
        f"'{HOSTILE}' no weight where 'correct' is tied.",
    )
    others = replace(conflict, is_alone=False, advantage_share=NOTHING, remedy="")
    assert conflict_findings(others) == (
        f"Side rewards decide 20.0 % [15.0 %, 25.0 %] of the groups, most of all '{HOSTILE}': 'correct' is tied in "
        "these 40.",
        "Give side rewards no weight where 'correct' is tied.",
    )
    assert conflict_findings(None) == ()


def sides(name: str, dead: float, differs: float, *, conflict: bool) -> SideRewards:
    return SideRewards(
        run=name,
        frac_reward_zero_std=Estimate.exact(dead),
        frac_main_differs=Estimate(value=differs, low=differs - 0.05, high=differs + 0.05),
        conflict=REPORT.reward_conflict if conflict else None,
    )


def test_fewer_dead_groups_by_side_rewards_alone_are_no_improvement() -> None:
    before, after = sides("a", 0.8, 0.2, conflict=False), sides("b", 0.0, 0.2, conflict=True)
    (text,) = conflicts_of_runs((before, after))
    assert text.startswith(
        "b has fewer groups without a gradient than a (0.0 % for 80.0 %), which shows no improvement"
    )
    assert text.endswith("and 'correct' differs in 20.0 % [15.0 %, 25.0 %], in a in 20.0 % [15.0 %, 25.0 %].")
    for first, second in (
        (before, sides("b", 0.0, 0.6, conflict=True)),
        (sides("a", 0.0, 0.2, conflict=False), after),
        (replace(before, frac_main_differs=NOTHING), after),
        (sides("a", 0.8, 0.2, conflict=True), after),
    ):
        assert not any("improvement" in text for text in conflicts_of_runs((first, second)))
    assert next(conflicts_of_runs((sides("a", 0.0, 0.2, conflict=True),))).startswith(
        f"In a '{HOSTILE}' alone decides 20.0 %"
    )
    assert list(conflicts_of_runs((before,))) == []


def test_pooled_policies_split_the_gap() -> None:
    assert policy_finding(REPORT) == (
        "The log pools 1 policies: of the gap, +30.0 points come from groups that differ for the same policy and "
        "+10.4 from policies that differ."
    )
    assert policy_finding(replace(REPORT, policy_gap=None)) == ""

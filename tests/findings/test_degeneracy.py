import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.findings.degeneracy import (
    LoggedGroups,
    cost_finding,
    dead_group_advice,
    degeneracy_findings,
    dispersion_finding,
    policy_finding,
    remedy_finding,
    target_finding,
)
from gradscope.results import degeneracy as results
from gradscope.results.source import BROKEN_ADVANTAGE, BROKEN_REWARD, LOWER_BOUND, Quarantine, QuarantineReason
from tests.metrics.uncertainty.test_steps import persistent
from tests.render.examples import HOSTILE, degeneracy_report, with_steps

REPORT = degeneracy_report()
ALIVE = replace(
    REPORT,
    frac_reward_zero_std=Estimate.exact(0.0),
    starvation=replace(REPORT.starvation, frac_rollouts=Estimate.exact(0.0)),
)
NOTHING = Estimate.undefined_because("nothing is known")


def size(group_size: int, degeneracy: Estimate, method: str = "forecast") -> results.GroupSizeDegeneracy:
    return results.GroupSizeDegeneracy(
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
    of_one_step = replace(REPORT, course=results.DegeneracyCourse(step=(0,)))
    assert cost_finding(of_one_step).endswith("; of 64 rollouts 37.6 count.")


@pytest.mark.parametrize(
    ("z", "p_value", "words"),
    [
        (21.5, 0.0005, "Chance does not explain them: the groups of a step differ in pass rate (z = 21.5, p < 0.001"),
        (0.4, 0.3, "groups of a step differ in pass rate cannot be told: one rate for all is not refuted (z = 0.4"),
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
    text = dispersion_finding(replace(REPORT, overdispersion=once))
    assert text.endswith(
        ", by their prompts or by what the rollouts of a group share: only prompts that return would tell."
    )
    assert "prompts of a step differ" not in returning + text
    untested = replace(REPORT.overdispersion, z=NOTHING)
    assert dispersion_finding(replace(REPORT, overdispersion=untested)) == ""


@pytest.mark.parametrize(
    ("variance", "end"),
    [
        (Estimate(value=0.01, low=-0.01, high=0.0225), "), nor is a standard deviation of 0.15 between pass rates."),
        (Estimate(value=-0.02, low=-0.03, high=-0.01), ")."),
        (Estimate.exact(0.01), "p = 0.3, 1999 deals of the outcomes within steps)."),
    ],
)
def test_what_is_not_refuted_comes_with_what_is_not_excluded(variance: Estimate, end: str) -> None:
    tested = replace(REPORT.overdispersion, z=Estimate.exact(0.4), p_value=Estimate.exact(0.3), rate_variance=variance)
    assert dispersion_finding(replace(REPORT, overdispersion=tested)).endswith(end)


def test_remedies_stand_beside_each_other() -> None:
    doubled = size(16, Estimate(value=0.3, low=0.0002, high=0.4))
    assert remedy_finding(REPORT, doubled) == (
        "Resampling dead groups until the batch is full takes 1.70 times the rollouts; groups of 16 take twice as many "
        "and are forecast to leave 30.0 % [<0.1 %, 40.0 %] dead."
    )
    sentence = "Resampling dead groups until the batch is full takes 1.70 times the rollouts."
    assert remedy_finding(REPORT, None) == remedy_finding(REPORT, size(16, NOTHING)) == sentence
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
    now, *rest = REPORT.target.plans
    met = replace(REPORT.target, plans=(replace(now, degeneracy=Estimate.exact(0.2)), *rest))
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


def test_pooled_policies_split_the_gap() -> None:
    assert policy_finding(REPORT) == (
        "The log pools 1 policies: of the gap, +30.0 points come from groups that differ for the same policy and "
        "+10.4 from policies that differ."
    )
    assert policy_finding(replace(REPORT, policy_gap=None)) == ""


LOG = LoggedGroups(num_levels=2, num_singletons=0, num_incomplete=0, resampled=False)


def shown(report: results.DegeneracyReport, log: LoggedGroups = LOG) -> str:
    return " ".join(degeneracy_findings(report, log, None))


def with_kinds(all_pass: float, all_fail: float) -> results.DegeneracyReport:
    kinds = {"frac_all_pass": all_pass, "frac_all_fail": all_fail, "frac_reward_zero_std": all_pass + all_fail}
    estimates = {name: Estimate.exact(value) for name, value in kinds.items()}
    return replace(degeneracy_report(), frac_tied=Estimate.exact(0.0), reward_conflict=None, **estimates)


def test_a_conflict_of_many_groups_comes_first_and_one_of_few_after_the_share() -> None:
    few = degeneracy_report()
    many = replace(few, frac_reward_conflict=Estimate.exact(0.6))
    ranks = [
        [text.startswith(f"'{HOSTILE}' alone decides") for text in degeneracy_findings(conflict, LOG, None)].index(True)
        for conflict in (few, many)
    ]
    assert (ranks[0] > 0, ranks[1]) == (True, 0)
    assert dead_group_advice(many).startswith('Try scale_rewards="none"')
    assert shown(many).count("Try scale_rewards") == 1
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


@pytest.mark.parametrize(
    ("all_pass", "counted", "warns"), [(0.0, False, True), (0.5, False, False), (0.0, True, False)]
)
def test_a_filter_may_hide_dead_groups_where_none_is_logged(all_pass: float, counted: bool, warns: bool) -> None:
    report = with_kinds(all_pass, 0.0)
    unknown = Estimate.undefined_because("nothing was counted")
    behind = report.behind_filter if counted else replace(report.behind_filter, frac_zero_std_sampled=unknown)
    filtered = f"dynamic sampling drops dead groups; {LOWER_BOUND}"
    source = replace(report.source, missing=("The log holds no text.", filtered))
    text = shown(replace(report, behind_filter=behind, source=source))
    assert (filtered in text) == warns
    assert "holds no text" not in text


@pytest.mark.parametrize(
    ("field", "num", "words"),
    [
        ("num_contradicting", 24, "In 24 of 94 groups with unequal rewards the logged advantages fall"),
        ("num_zeroed", 48, "In 48 of 94 groups with unequal rewards all logged advantages are zero"),
    ],
    ids=["against rewards in a quarter", "zero in most"],
)
def test_advantages_that_contradict_the_rewards_of_live_groups_are_reported(field: str, num: int, words: str) -> None:
    for number in (num - 1, num):
        report = replace(degeneracy_report(), **{field: number})
        assert report.contradicts_rewards == (words in shown(report)) == (number == num)


@pytest.mark.parametrize(
    ("reason", "words", "advice"),
    [
        (BROKEN_ADVANTAGE, "logged advantage of 2 rollouts is NaN", "Look at the rewards and the standard deviations"),
        (
            BROKEN_REWARD,
            "The reward of 2 rollouts is NaN or infinite (first at log.jsonl:3): an advantage of their groups",
            "Look at what the reward function makes of these completions",
        ),
    ],
)
def test_what_is_no_number_comes_first_with_what_to_look_at(reason: str, words: str, advice: str) -> None:
    broken = QuarantineReason(reason=reason, num_rows=2, num_rollouts=2, first="log.jsonl:3")
    report = degeneracy_report()
    source = replace(report.source, quarantined=Quarantine(num_rows=2, num_rollouts=2, reasons=(broken,)))
    first = shown(replace(report, source=source))
    assert words in first
    assert advice in first


def test_the_gap_is_split_over_several_steps() -> None:
    assert (
        "the gap is +40.4 [+32.0, +48.0] points, 47 [31, 61] times the prediction: +39.0 [+31.0, +46.0] from groups "
        "that differ within a step and +1.4 [-0.4, +3.2] from a pass rate that moves between steps."
    ) in shown(degeneracy_report(num_steps=2))
    # the gap of a single step has a ratio but over a prediction of zero
    assert "the gap is +40.4 [+32.0, +48.0] points, 47 [31, 61] times the prediction." in (
        shown(degeneracy_report(num_steps=1))
    )
    report = replace(degeneracy_report(num_steps=1), relative_gap=Estimate.undefined_because("it is relative to zero"))
    assert "the gap is +40.4 [+32.0, +48.0] points." in shown(report)
    small = replace(report, relative_gap=Estimate(value=0.062, low=-0.01, high=0.134))
    assert "[+32.0, +48.0] points, 0.062 [-0.01, 0.13] times the prediction." in shown(small)
    fewer = replace(small, jensen_gap=Estimate(value=-0.5, low=-0.8, high=0.2))
    assert "the gap is -50.0 [-80.0, +20.0] points." in shown(fewer)


@pytest.mark.parametrize("part", ["between_prompts", "over_time"])
def test_a_gap_without_one_of_its_parts_is_not_split(part: str) -> None:
    report = degeneracy_report(num_steps=3)
    parts = {
        "between_prompts": Estimate.exact(0.3),
        "over_time": Estimate.exact(0.1),
        part: Estimate.undefined_because("no"),
    }
    assert "47 [31, 61] times the prediction." in shown(
        replace(report, gap_decomposition=results.GapDecomposition(**parts))
    )


def test_an_undefined_prediction_says_why() -> None:
    report = replace(degeneracy_report(), iid_prediction=Estimate.undefined_because("rewards have three levels"))
    assert "Pass rate and prediction are undefined: rewards have three levels." in shown(report)


@pytest.mark.parametrize(
    ("all_pass", "all_fail", "stay", "advice"),
    [
        (0.1, 0.4, True, "Most of them fail throughout"),
        (0.4, 0.1, True, "Most of them pass throughout"),
        (0.2, 0.4, True, "Some are too hard and some too easy"),
        (0.02, 0.02, True, "Nothing to do: too few groups are dead"),
        (0.0, 0.0, True, ""),
        # With G = 2 half of the groups are dead by luck, and "drop solved ones" was said beside "0 always pass".
        (0.1, 0.4, False, "Most fail, of prompts that pass in other groups: try more rollouts a group"),
        (0.4, 0.1, False, "Most pass, of prompts that fail in other groups: try more rollouts a group"),
        (0.2, 0.3, False, "Most are of prompts that are live in other groups: try more rollouts a group"),
    ],
)
def test_advice_follows_the_kind_of_dead_groups(all_pass: float, all_fail: float, stay: bool, advice: str) -> None:
    report = with_kinds(all_pass, all_fail)
    prompts = replace(
        report.prompts, never_groups=0, always_groups=stay * round((all_pass + all_fail) * report.num_groups)
    )
    prompts = prompts if stay else replace(prompts, never=0, always=0)
    assert advice in shown(replace(report, course=results.DegeneracyCourse(), prompts=prompts))


def test_of_few_groups_nothing_is_called_fine() -> None:
    """Of two groups one or both dead was "Nothing to do"."""
    for share in (0.5, 1.0):
        few = replace(with_kinds(share, 0.0), num_groups=2, course=results.DegeneracyCourse())
        assert "Log more groups" in shown(few)
        assert "Nothing to do" not in shown(few)


@pytest.mark.parametrize(
    ("all_pass", "all_fail", "share", "is_advised"),
    [(0.1, 0.4, 0.93, True), (0.1, 0.4, 0.5, False), (0.4, 0.1, 1.0, False)],
)
def test_the_length_limit_comes_before_the_prompts(
    all_pass: float, all_fail: float, share: float, is_advised: bool
) -> None:
    """A run whose completions were cut off, all but a few, was to try easier prompts."""
    report = replace(with_kinds(all_pass, all_fail), frac_cut_off=share)
    text = shown(replace(report, course=results.DegeneracyCourse()))
    assert ("of completions were cut off at the length limit: raise it" in text) == is_advised


@pytest.mark.parametrize(
    ("first", "last", "kind", "sentence"),
    [
        (0.2, 1.0, "frac_all_fail", "More groups fail than at first: look at what changed"),
        (0.2, 0.8, "frac_all_pass", "More groups pass than at first: add harder prompts, or drop solved ones."),
        (0.2, 0.38, "frac_all_fail", "More groups fail than at first"),
        (0.2, 0.3, "frac_all_fail", ""),  # which may be chance
        (0.7, 0.1, "frac_all_fail", "Most of them fail throughout"),
    ],
)
def test_a_moving_share_is_reported_before_its_mean(first: float, last: float, kind: str, sentence: str) -> None:
    """A run that collapsed at three quarters had 42 % dead groups, "most of them fail throughout"."""
    shares = [first] * 30 + [last] * 10
    series = results.DegeneracyCourse(
        step=range(40),
        last_step=range(40),
        frac_reward_zero_std=shares,
        logged=[None] * 40,
        frac_all_pass=[0.0] * 40,
        frac_all_fail=[0.0] * 40,
    )
    dead = sum(shares) / 40
    kinds = (dead, 0.0) if kind == "frac_all_pass" else (0.0, dead)
    report = replace(with_kinds(*kinds), course=replace(series, **{kind: shares}), num_groups=320)
    text = shown(replace(report, prompts=replace(report.prompts, never_groups=320, always_groups=0)))
    assert ("Their share goes from" in text) == (abs(last - first) > 0.15)
    assert sentence in text


def series_of(shares: list[float], fails: list[float]) -> results.DegeneracyReport:
    """A log of 16 groups a step with these shares of dead groups, and of those that fail."""
    passes = [share - failing for share, failing in zip(shares, fails, strict=True)]
    steps = range(1, len(shares) + 1)
    series = results.DegeneracyCourse(
        step=steps,
        last_step=steps,
        frac_reward_zero_std=shares,
        frac_all_fail=fails,
        frac_all_pass=passes,
        logged=[None] * len(shares),
    )
    kinds = with_kinds(sum(passes) / len(passes), sum(fails) / len(fails))
    return replace(kinds, course=series, num_groups=16 * len(shares))


def test_steps_at_which_everything_fails_at_once_are_named() -> None:
    """A verifier that was away at three steps of sixty was "most pass, try more rollouts a group"."""
    shares = [1.0 if step in (20, 21, 37) else 0.2 for step in range(1, 61)]
    text = shown(series_of(shares, [share if share == 1 else 0.0 for share in shares]))
    assert "No group had a gradient at steps 20,21,37, before which most had one." in text
    assert "Look at what changed at step 20 (verifier, sampler, data) before the prompts." in text
    for slow in ([step / 30 for step in range(1, 31)] + [1.0] * 5, [1.0] * 30 + [0.2] * 10):  # solved; a cold start
        assert "No group had" not in shown(series_of(slow, slow))


def test_a_jump_of_all_kinds_is_no_matter_of_prompts_nor_is_a_harder_curriculum() -> None:
    shares = [0.1] * 30 + [1.0] * 20
    for part in (0.0, 1 / 3):  # a verifier that passes everything, a sampler that went greedy
        text = shown(series_of(shares, [share * part for share in shares]))
        assert "No group has had a gradient since step 31, for 20 steps; before, most had one." in text
        assert "Look at what changed at step 31 (verifier, sampler, data) before the prompts." in text
    equal = [0.02 + 0.02 * step for step in range(40)]
    text = shown(series_of(equal, [share / 2 for share in equal]))
    assert "Rollouts of a group have come to agree, passing and failing alike: look at the entropy" in text
    once = series_of([0.02] * 20 + [1.0] + [0.02] * 99, [0.0] * 120)
    assert "Look at what changed at step 21" in shown(replace(once, frac_reward_zero_std=Estimate.exact(0.03)))
    harder = series_of([0.6] * 25 + [0.2] * 25, [0.0] * 25 + [0.2] * 25)
    assert "Fewer groups are dead than at first, but more of them fail" in shown(harder)


def test_a_policy_that_wanders_seldom_moves_the_share_and_one_that_dies_does() -> None:
    """By groups alone 8 to 10 % of logs of a policy that wanders moved, and six of these thirty."""
    rng, moved = np.random.default_rng(0), []
    for dies in [0.0] * 30 + [0.2] * 10:
        wanders = 0.0 if dies else 0.04 * persistent(rng, 60, 0.8)
        shares = 0.3 + wanders + rng.normal(scale=0.08, size=60) + np.linspace(0.0, dies, 60)
        moved += ["Their share goes from" in shown(series_of(np.clip(shares, 0.0, 1.0).tolist(), [0.0] * 60))]
    assert sum(moved[:30]) <= 3
    assert sum(moved[30:]) >= 7


def test_sizes_that_move_the_share_are_told() -> None:
    falls = [0.5] * 25 + [0.1] * 25
    report = series_of(falls, falls)
    assert "groups differ in size" in shown(replace(report, group_size=None))
    assert "groups differ in size" not in shown(replace(report, group_size=8))


def test_equal_rewards_of_two_levels_are_exact_in_float32() -> None:
    report = degeneracy_report()
    first, *rest = report.by_step
    fewer = with_steps(report, (replace(first, logged=first.frac_reward_zero_std.value - 0.25), *rest))
    assert "misses groups of equal fractional rewards" in shown(fewer, replace(LOG, num_levels=3))
    assert "the trainer's groups may have another size" in shown(fewer)


def test_without_a_threshold_the_advice_is_to_name_one() -> None:
    unknown = Estimate.undefined_because("no threshold")
    prompts = replace(REPORT.prompts, never=None, always=None, never_groups=None, always_groups=None)
    report = replace(degeneracy_report(), frac_all_pass=unknown, frac_all_fail=unknown, prompts=prompts)
    assert "say what counts as a pass (--success-threshold)." in shown(report)
    hard, easy = round(0.4 * report.num_groups), round(0.05 * report.num_groups)
    text = shown(replace(report, prompts=replace(prompts, never_groups=hard, always_groups=easy)))
    assert "Most of them fail throughout" in text
    assert "say what counts as a pass" not in text
    never = replace(prompts, never_groups=report.num_groups, always_groups=0)
    assert "Every rollout fails: look at the reward" in shown(replace(report, prompts=never))


def test_few_groups_of_many_prompts_are_not_most_of_the_dead_ones() -> None:
    """Shares of dead groups are held against shares of groups: 9 of 10 prompts may have a tenth of the groups."""
    unknown = Estimate.undefined_because("no threshold")
    few = round(0.1 * REPORT.num_groups)
    prompts = replace(REPORT.prompts, never=90, always=0, live=10, never_groups=few, always_groups=0)
    report = replace(
        degeneracy_report(),
        frac_reward_zero_std=Estimate.exact(0.8),
        frac_all_pass=unknown,
        frac_all_fail=unknown,
        prompts=prompts,
    )
    assert "Most are of prompts that are live in other groups" in shown(report)


def test_resampled_groups_are_said_and_get_no_advice() -> None:
    text = shown(degeneracy_report(), replace(LOG, resampled=True))
    assert "Dead groups were replaced before they reached this log" in text
    assert "try" not in text
    assert "Resampling dead groups" not in text
    # levels between pass and fail are pointed out
    assert "The rewards have 3 levels" in shown(degeneracy_report(), replace(LOG, num_levels=3))
    assert "levels" not in shown(degeneracy_report())


def test_the_trainers_own_share_is_compared_where_it_was_logged() -> None:
    report = degeneracy_report()
    assert "is the same at each of the 19 steps compared." in shown(report)
    first, *rest = report.by_step
    share = first.frac_reward_zero_std.value
    fewer = with_steps(report, (replace(first, logged=share - 0.25), *rest))
    changed = with_steps(report, (replace(first, logged=share + 0.25), *rest))
    assert f"At 1 of 19 steps the trainer logged another frac_reward_zero_std, first at step 1: {share - 0.25:.4f}" in (
        shown(fewer)
    )
    assert "The log may lack rows of the groups that differed" in shown(changed)
    broken = shown(with_steps(report, (replace(first, logged=float("nan")), *rest)))
    assert "first at step 1: NaN, here" in broken
    assert "the trainer's own number is broken" in broken
    own_shares = [row.frac_reward_zero_std.value for row in report.by_step]
    for shift, side in ((1, "before"), (-1, "after")):
        shares = own_shares[-shift:] + own_shares[:-shift]
        shifted = [replace(row, logged=share) for row, share in zip(report.by_step, shares, strict=True)]
        assert f"They are those of the rollouts one step {side}" in shown(with_steps(report, shifted))
    silent = with_steps(report, [replace(row, logged=None) for row in report.by_step])
    assert "trainer" not in shown(silent)


def test_what_is_left_out_is_counted() -> None:
    text = shown(degeneracy_report(), replace(LOG, num_singletons=2, num_incomplete=3))
    assert "Groups left out: 2 with a single rollout and 3 with a missing reward. " in text


@pytest.mark.parametrize("turning", [False, True], ids=["prompts that differ", "prompts that turn"])
def test_where_no_group_is_alive_no_advice_resamples_them(turning: bool) -> None:
    num_live, num_dead = (32, 0) if turning else (0, 80)
    counts = replace(REPORT.prompts, live=num_live, never_groups=num_dead, always_groups=num_dead)
    advice = dead_group_advice(replace(with_kinds(0.5, 0.5), prompts=counts))
    assert advice.startswith("Rollouts of a group never differ, though groups do: look at what they share")
    assert "resampling" not in advice
    assert "resampling" in dead_group_advice(replace(with_kinds(0.4, 0.4), prompts=counts))


def test_groups_tied_between_pass_and_fail_ask_for_finer_rewards() -> None:
    tied = replace(with_kinds(0.05, 0.05), frac_reward_zero_std=Estimate.exact(0.5), frac_tied=Estimate.exact(0.4))
    assert dead_group_advice(tied).startswith(
        "Most of them are tied between pass and fail: try a reward with finer steps"
    )
    assert dead_group_advice(with_kinds(0.0, 0.0)) == "Nothing to do: none of these groups was without a gradient."

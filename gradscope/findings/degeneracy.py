"""Sentences about degeneracy: the share of dead groups, the signal that they cost, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from msgspec import Struct

from gradscope.estimate import Estimate
from gradscope.findings import degeneracy_parts
from gradscope.findings.logged import TO_TRY, cut_off_advice, gap_sentence
from gradscope.metrics.outcomes.groups import FAINT_REWARDS
from gradscope.metrics.uncertainty.intervals import difference_of, wilson_interval
from gradscope.results import degeneracy as results
from gradscope.say import amount, chance, counted, named_steps, percent, points, with_interval

_SIGNIFICANT = 0.05
_NO_RATIO = 1e-4  # predicted share of groups below which a ratio to it has no end


def cost_finding(report: results.DegeneracyReport) -> str:
    """What share of the training signal was lost; empty where every group is alive."""
    cost = report.starvation
    is_part = report.reward_conflict is not None and report.reward == report.reward_conflict.main
    if not cost.frac_rollouts.value or cost.dilution.value is None or is_part or report.has_other_baseline:
        return ""
    shares = (
        (cost.frac_rollouts.value, "rollouts"),
        (cost.frac_tokens.value, "completion tokens"),
        (cost.frac_generation_time.value, "generation time"),
    )
    lost = " and ".join(f"{percent(share)} of {resource}" for share, resource in shares if share is not None)
    batch, effective = cost.batch_size.value or 0.0, cost.effective_batch_size.value or 0.0
    per = " a step" if len(report.course.step) > 1 else ""
    return f"Signal lost: {lost}; of {amount(batch)} rollouts{per} {amount(effective)} count."


def dispersion_finding(report: results.DegeneracyReport) -> str:
    """Whether groups of a step are seen to differ in pass rate, and prompts with them; empty where that is untested."""
    tested = report.overdispersion
    if tested.z.value is None or tested.p_value.value is None:
        return ""
    evidence = f"z = {tested.z.value:.1f}, {chance(tested.p_value.value)}, {tested.test}"
    if tested.p_value.value > _SIGNIFICANT:
        # the variance of pass rates over the whole log is at least that within steps
        highest = tested.rate_variance.high or 0.0
        not_excluded = f", nor is a standard deviation of {highest**0.5:.2f} between pass rates" if highest > 0 else ""
        return (
            "Whether groups of a step differ in pass rate cannot be told: one rate for all is not refuted "
            f"({evidence}){not_excluded}."
        )
    text = f"Chance does not explain them: the groups of a step differ in pass rate ({evidence})"
    prompts, visits = tested.between_prompts, tested.between_visits
    if not (prompts.is_defined and visits.is_defined):
        return (
            f"{text}, by their prompts or by what the rollouts of a group share: only prompts that return would tell."
        )
    return (
        f"{text}. Where prompts return, {with_interval(prompts, 'z.3f')} of the variance stays with the prompt and "
        f"{with_interval(visits, 'z.3f')} is of the visit."
    )


def remedy_finding(report: results.DegeneracyReport, doubled: results.GroupSizeDegeneracy | None) -> str:
    """What resampling and groups of twice the size would bring; empty where every group is alive."""
    factor = report.starvation.resampling_factor
    if not report.frac_reward_zero_std.value:
        return ""
    if factor.value is None:
        return f"Resampling dead groups would not help: {factor.undefined}."
    text = f"Resampling dead groups until the batch is full takes {factor.value:.2f} times the rollouts"
    if doubled is None or doubled.degeneracy.value is None:
        return f"{text}."
    return (
        f"{text}; groups of {doubled.group_size} take twice as many and are forecast to leave "
        f"{with_interval(doubled.degeneracy, percent)} dead."
    )


def target_finding(report: results.DegeneracyReport) -> str:
    """What it takes to reach the target; empty where there is none."""
    target = report.target
    if target is None:
        return ""
    now, larger, resampling = target.plans
    if now.degeneracy.value is not None and now.degeneracy.value <= target.target:
        return f"At most {percent(target.target)} dead groups: already so at G = {now.group_size}."
    by_size = f"by larger groups not within reach ({larger.degeneracy.undefined})"
    if larger.degeneracy.value is not None:
        by_size = f"G = {larger.group_size} ({', '.join([larger.method, *_tokens(larger)])})"
    by_drawing = f"by resampling not possible ({resampling.rollouts_per_group.undefined})"
    if resampling.rollouts_per_group.value is not None:
        cost = "".join(f" ({tokens})" for tokens in _tokens(resampling))
        number = f"{resampling.rollouts_per_group.value:.1f} rollouts"
        by_drawing = f"or {number} sampled for each group by resampling{cost}"
    return f"At most {percent(target.target)} dead groups: {by_size}; {by_drawing}."


def policy_finding(report: results.DegeneracyReport) -> str:
    """What pooling several policies does to the gap; empty for a log of one policy."""
    split = report.policy_gap
    if split is None or split.between_prompts.value is None or split.between_policies.value is None:
        return ""
    return (
        f"The log pools {len(report.by_policy)} policies: of the gap, {points(split.between_prompts.value)} points "
        f"come from groups that differ for the same policy and {points(split.between_policies.value)} from "
        "policies that differ."
    )


def _tokens(plan: results.TargetPlan) -> list[str]:
    tokens = plan.tokens_per_group.value
    return [] if tokens is None else [f"{tokens:,.0f} tokens a group"]


class LoggedGroups(Struct, frozen=True, kw_only=True):
    """Facts about a log that its report does not hold."""

    num_levels: int  # different rewards in all groups
    num_singletons: int  # groups left out because they have a single rollout
    num_incomplete: int  # groups left out because a reward is missing
    resampled: bool  # whether dead groups were replaced before they reached the log
    num_without_main: int = 0  # rollouts that reach the threshold without the main reward, and so count as failing
    num_steps: int = 0  # of which there are rollouts
    other_shares: Sequence[float] = ()  # the trainer's own share of dead groups at other steps


def degeneracy_summary(report: results.DegeneracyReport, log: LoggedGroups) -> tuple[str, ...]:
    """The first sentences of a report: the share, the target, what does not fit, what it costs, what to try."""
    conflict = degeneracy_parts.conflict_findings(report.reward_conflict)
    leads = conflict and report.is_in_conflict
    moved = " ".join(filter(None, (sudden_sentence(report), moved_sentence(report))))
    environments = degeneracy_parts.environment_sentence(report)
    leading = moved or environments
    advice = "" if log.resampled or leads else _advice(report, log)  # a conflict has its own
    counts = {"with a single rollout": log.num_singletons, "with a missing reward": log.num_incomplete}
    left_out = [f"{number:,} {words}" for words, number in counts.items() if number]
    sentences = [
        *_faults(report),
        *(conflict if leads else ()),
        f"There are twice the usual rollouts at {named_steps(doubled)}: did a resumed run log them again, or do others "
        "lack the files of some ranks?"
        if (doubled := report.doubled_steps)
        else "",
        environments,
        copies_sentence(report),
        _share(report),
        _other_share(report, log),
        f"{report.num_pooled:,} of {report.num_groups:,} groups have a multiple of the usual {report.usual_size} "
        f"rollouts: {_MERGED}"
        if report.num_pooled and not doubled
        else "",
        f"The logged advantages of {counted(report.num_merged, 'group')} have the means of several: {_MERGED}"
        if report.num_merged and not report.num_pooled
        else "",
        f"One prompt has {percent(report.frac_of_one_prompt)} of the rollouts: much of what is learned and shown is it."
        if report.frac_of_one_prompt
        else "",
        *((moved, advice) if leading else ()),
        degeneracy_parts.silent_sentence(report.silent_functions),
        degeneracy_parts.balance_sentence(report),
        *(() if leads else conflict),
        target_finding(report),
        *_filtered(report, log),
        degeneracy_parts.disagreement(report.course, log.num_levels)[0],
        f"Groups left out: {' and '.join(left_out)}." if left_out else "",
        gap_sentence(report.course.step if report.course.step == report.course.last_step else ()),
        _levels(report, log),
        cost_finding(report),
        "" if leading else advice,
    ]
    return tuple(filter(None, sentences))


def degeneracy_findings(
    report: results.DegeneracyReport, log: LoggedGroups, doubled: results.GroupSizeDegeneracy | None
) -> tuple[str, ...]:
    """The summary, then resampling and ``doubled`` groups, the gap and its parts, each reward, what agrees."""
    is_undefined = report.iid_prediction.value is None
    sentences = [
        *degeneracy_summary(report, log),
        "" if log.resampled else remedy_finding(report, doubled),
        *(() if is_undefined else (_gap(report),)),
        policy_finding(report),
        degeneracy_parts.environments_finding(report),
        dispersion_finding(report),
        *degeneracy_parts.reward_findings(report),
        *((_gap(report),) if is_undefined else ()),
        degeneracy_parts.disagreement(report.course, log.num_levels)[1],
    ]
    return tuple(filter(None, sentences))


def _faults(report: results.DegeneracyReport) -> Iterator[str]:
    for broken, whose, then in (
        (report.source.broken_rewards, "reward", "an advantage of their groups is not a number either"),
        (report.source.broken_advantages, "logged advantage", "a loss that counts them is not a number either"),
    ):
        if broken is not None:
            rollouts = counted(broken.num_rollouts, "rollout")
            yield f"The {whose} of {rollouts} is NaN or infinite ({broken.where}): {then}."
    live = f"of {report.num_groups - report.num_dead:,} groups with unequal rewards"
    if report.contradicts_rewards and report.num_zeroed > report.num_contradicting:
        yield f"In {report.num_zeroed:,} {live} all logged advantages are zero: these gave no gradient either."
    elif report.contradicts_rewards:
        yield (
            f"In {report.num_contradicting:,} {live} the logged advantages fall where the rewards rise: their sign "
            "is wrong, or they are those of other rollouts."
        )
    if report.has_other_baseline and 2 * report.num_moved > report.num_dead:
        yield (
            f"In {report.num_moved:,} groups of equal rewards the logged advantages are not zero: the baseline is not "
            "the mean of the group (but of a batch, a critic or a KL term), and these groups move the policy."
        )
    elif report.has_other_baseline:
        yield (
            f"In {report.num_off_mean:,} {live} the logged advantages do not sum to zero: the baseline is not the "
            "mean of these rewards (but of a batch, a critic, of more rollouts than were logged, or none)."
        )


def copies_sentence(report: results.DegeneracyReport) -> str:
    """That rows repeat, or that groups are dead of copies; empty where neither is."""
    if report.num_once:
        return f"Groups differ in size but have {report.num_once} different completions each: rows were logged twice."
    if report.frac_copied <= _COPIED:
        return ""
    text = f"{percent(report.frac_copied)} of completions in groups of equal rewards are exact copies of another there"
    return f"{text}: is the sampler greedy, are seeds shared, or did the policy collapse?"


def _share(report: results.DegeneracyReport) -> str:
    share, num_dead = report.frac_reward_zero_std, report.num_dead
    is_part = report.reward_conflict is not None and report.reward == report.reward_conflict.main
    whose = f"rewards of '{report.reward}'" if is_part else "rewards"
    text = f"{num_dead:,} of {report.num_groups:,} groups ({with_interval(share, percent)}) have equal {whose}"
    by_kind = {"all pass": report.frac_all_pass, "all fail": report.frac_all_fail, "tied": report.frac_tied}
    kinds = [f"{round(part.value * report.num_groups):,} {name}" for name, part in by_kind.items() if part.value]
    if report.looks_filtered:
        return (
            f"{text}, where independent rollouts with these counts of passes leave {report.min_num_filtered:,.0f} or "
            "more: a filter has probably dropped dead groups before they were logged."
        )
    faint = _faint(report)
    if not num_dead:
        live = "" if report.reward_conflict else ": each of them gives a group-mean baseline a gradient"
        return f"{text}, but {faint}" if faint else f"{text}{live}."
    lost = "of which it alone makes no gradient" if is_part else "and give a group-mean baseline no gradient"
    return f"{text}{',' * is_part} {lost}: {', '.join(kinds)}{'; ' * bool(faint)}{faint or '.'}"


def _other_share(report: results.DegeneracyReport, log: LoggedGroups) -> str:
    """That the trainer logged another share at most steps, of which there are no rollouts; empty where it did not."""
    share, shares = report.frac_reward_zero_std.value, log.other_shares
    if share is None or len(shares) <= log.num_steps or abs((mean := fmean(shares)) - share) < _ANOTHER_SHARE:
        return ""
    return (
        f"The trainer logged {percent(mean)} at {counted(len(shares), 'other step')}, of which there are no rollouts: "
        f"the {percent(share)} above is of {counted(log.num_steps, 'step')}."
    )


def _are_tiny(report: results.DegeneracyReport) -> bool:
    return report.faint_spread < FAINT_REWARDS and report.num_faint == report.num_groups - report.num_dead


def _faint(report: results.DegeneracyReport) -> str:
    """That rewards of live groups hardly differ; empty where they do, or side rewards are to be seen on their own."""
    if not report.num_faint or report.reward_conflict:
        return ""
    text = f"in {report.num_faint:,} they differ by {report.faint_spread:.2g} at most"
    if _are_tiny(report):
        return (
            f"{text}: what the trainer adds to the standard deviation (TRL 1e-4, verl 1e-6) decides how much of an "
            "advantage that is."
        )
    return (
        f"{text}, next to nothing compared with other groups: divided by the group's standard deviation, that counts "
        "like a real difference."
    )


def _filtered(report: results.DegeneracyReport, log: LoggedGroups) -> Iterator[str]:
    if log.resampled:
        yield (
            "Dead groups were replaced before they reached this log: these are shares of the batches that were trained "
            "on, and the policy's own share of dead groups is no smaller."
        )
    behind, logged = report.behind_filter, report.frac_reward_zero_std.value
    share, num_steps = behind.frac_zero_std_sampled, len(behind.by_step)
    if share.value is not None and logged is not None:
        num_counted = sum(row.num_sampled is not None for row in behind.by_step)
        at_steps = f", at the {num_counted} of {num_steps} steps that tell" * (num_counted < num_steps)
        yield (
            f"Behind the filter: of {behind.num_sampled:,} groups that were sampled {behind.num_dead:,} "
            f"({with_interval(share, percent)}) gave no gradient, by the log's count of dropped groups{at_steps}; "
            f"the {percent(logged)} above is of those that were kept."
        )
    elif not log.resampled and not logged:  # a filter leaves no dead group
        yield from report.source.filters


def _gap(report: results.DegeneracyReport) -> str:
    predicted, gap = report.iid_prediction, report.jensen_gap
    parts = report.gap_decomposition
    if predicted.value is None or gap.value is None or report.pass_rate.value is None:
        main = report.prompts.reward
        hint = "" if main == report.reward else f"; of '{main}' --reward {main} has them"
        return f"Pass rate and prediction are undefined: {predicted.undefined}{hint}."
    text = (
        f"Independent rollouts with one pass rate ({report.pass_rate_origin}) would make {percent(predicted.value)} "
        f"of groups degenerate; the gap is {with_interval(gap, points)} points"
    )
    if report.relative_gap.is_defined and gap.value >= 0 and predicted.value >= _NO_RATIO:
        ratio = with_interval(report.relative_gap, lambda times: f"{times:,.0f}" if times >= 10 else f"{times:.2g}")
        text += f", {ratio} times the prediction"
    if not (parts.between_prompts.is_defined and parts.over_time.is_defined) or len(report.course.step) < 2:
        return f"{text}."
    return (
        f"{text}: {with_interval(parts.between_prompts, points)} from groups that differ within a step and "
        f"{with_interval(parts.over_time, points)} from a pass rate that moves between steps."
    )


def _levels(report: results.DegeneracyReport, log: LoggedGroups) -> str:
    if log.num_without_main and report.success_threshold is not None:
        main, threshold = report.prompts.reward, report.success_threshold
        return f"A pass is one of '{main}': {log.num_without_main:,} rollouts reach {threshold:g} without it."
    if report.success_threshold is None or log.num_levels <= 2:
        return ""
    return (
        f"The rewards have {log.num_levels} levels: a group can all pass and still have unequal rewards, so the gap "
        "compares a share of equal rewards with a prediction about passes."
    )


def _advice(report: results.DegeneracyReport, log: LoggedGroups) -> str:
    if not report.frac_reward_zero_std.value:
        return ""
    if log.num_levels == 1 and report.success_threshold is None and report.num_groups >= _HANDFUL:
        return "Every rollout has one and the same reward: look at the reward function before the prompts."
    return dead_group_advice(report)


def dead_group_advice(report: results.DegeneracyReport) -> str:
    """The remedy for most dead groups, by their kind, or by their prompts where only the main reward has kinds."""
    dead = report.frac_reward_zero_std.value
    if report.reward_conflict and (report.is_in_conflict or not dead):
        return degeneracy_parts.conflict_advice(report.reward_conflict)
    if report.source.broken_rewards:
        return "Look at what the reward function makes of these completions."
    if report.source.broken_advantages:
        return "Look at the rewards and the standard deviations that these advantages were made of."
    if report.contradicts_rewards:
        return "Look at how advantages are made and which rollouts they are written to."
    if report.has_other_baseline:
        return "Look at how advantages are made, and whether that baseline is meant."
    if report.doubled_steps or report.num_once:
        return "Keep each rollout once, and see whether files are missing, before judging by the numbers."
    if report.looks_filtered:
        return "Log groups before they are filtered: what the filter drops costs rollouts too."
    if report.num_faint > report.num_dead:
        if _are_tiny(report):
            return "Look at the scale of the rewards."
        return "Look at what makes these differences; round the rewards, or divide by no standard deviation."
    if not dead:
        return "Nothing to do: none of these groups was without a gradient."
    if copies_sentence(report) and dead >= _FEW:
        return "Look at the sampler (temperature, seeds) and at the entropy: copies of a completion teach nothing."
    kinds, ends = _too_hard_and_too_easy(report), _ends(report) if report.frac_all_fail.is_defined else None
    dying, failing, passing = (last - first for first, last in ends.values()) if ends else (0.0, 0.0, 0.0)
    for environment in degeneracy_parts.dead_environments(report)[:1]:
        if (environment.pass_rate.value or 0.0) > 0.5:
            return f"Sample '{environment.environment}' less often, or give it harder prompts."
        return f"Look at the verifier and the prompts of '{environment.environment}' before those of others."
    location = "".join(f" at step {step} (verifier, sampler, data)" for step in _sudden(report)[:1])
    if location and failing <= max(passing, 0):
        return f"Look at what changed{location} before the prompts."
    if dead < _FEW:
        return "Nothing to do: too few groups are dead to say what to change."
    if round(dead * report.num_groups) < _HANDFUL:
        return "Log more groups: so few dead ones do not say what to change."
    if kinds is None:
        return "To see whether they are too easy or too hard, say what counts as a pass (--success-threshold)."
    hard, easy = kinds
    if hard > easy and (advice := cut_off_advice(report.frac_cut_off)):
        return advice
    if dying < 0 < failing:
        return "Fewer groups are dead than at first, but more of them fail: judge by the last steps."
    if min(failing, passing) > max(failing, passing) / 2:
        return "Rollouts of a group have come to agree, passing and failing alike: look at the entropy and temperature."
    if failing > max(passing, 0):
        return f"More groups fail than at first: look at what changed{location} before making the prompts easier."
    if passing > 0 and (report.group_size or report.usual_size):
        return "More groups pass than at first: add harder prompts, or drop solved ones."
    if report.frac_all_fail.is_defined and hard + easy < dead / 2:
        return "Most of them are tied between pass and fail: try a reward with finer steps, or look at what ties them."
    if max(hard, easy) == 1:
        verb = (
            "fails: look at the reward function, and at completions that were cut off,"
            if hard
            else "passes: see whether the reward can fail, or the log leaves out what fails,"
        )
        return f"Every rollout {verb} before the prompts."
    lost = (report.prompts.never_groups or 0) + (report.prompts.always_groups or 0)
    is_luck = report.prompts.never_groups is not None and lost < dead * report.num_groups / 2
    counts = report.prompts
    if not is_luck and report.num_rollouts < _FEW_ROLLOUTS * (counts.live + (counts.never or 0) + (counts.always or 0)):
        return "Whether that is luck so few rollouts of a prompt do not tell: try more rollouts a group."
    prompts, visits = report.overdispersion.between_prompts, report.overdispersion.between_visits
    if is_luck and visits.side_of_zero > 0 and (visits.value or 0.0) > (prompts.value or 0.0):
        return f"Rollouts of a group agree more than their prompt explains: {_SHARED}"
    if dead == 1 and (is_luck or min(hard, easy) > 0):  # there is no live group to resample, nor a prompt to choose
        return f"Rollouts of a group never differ, though groups do: {_SHARED}"
    kind = "fail" if hard > 2 * easy else "pass" if easy > 2 * hard else "neither"
    if is_luck and not report.frac_all_fail.is_defined:  # only of prompts it is known whether they pass
        kind = "neither"
    return _KIND_ADVICE[is_luck, kind]


_SHARED = (
    "look at what they share (equal completions, a cached or shared verdict, one seed, an environment that failed)."
)
_KIND_ADVICE = {
    (True, "fail"): "Most fail, of prompts that pass in other groups: try more rollouts a group, or partial credit.",
    (True, "pass"): "Most pass, of prompts that fail in other groups: try more rollouts a group, or harder prompts.",
    (True, "neither"): "Most are of prompts that are live in other groups: try more rollouts a group, or resampling "
    "dead groups.",
    (False, "fail"): f"Most of them fail throughout: {TO_TRY['fail']}",
    (False, "pass"): f"Most of them pass throughout: {TO_TRY['pass']}",
    (False, "neither"): "Some are too hard and some too easy: try choosing prompts by their pass rate, or resampling "
    "dead groups.",
}
"""Whether most dead groups are of prompts that are live in others, and the kind of most of them -> what to try."""
_MERGED = "two groups of a prompt at one step count as one where no id tells them apart. Log a group id."
_COPIED = 0.5  # of the rollouts of dead groups: then copies are why most of them are dead
_FEW = 0.05  # share of dead groups below which nothing is to be won
_FEW_ROLLOUTS = 4  # of a prompt: with fewer one that passes half the time passes or fails throughout in a quarter
_HANDFUL = 5  # dead groups below which their kinds say nothing
_ANOTHER_SHARE = 0.1  # from that of all rollouts: what the trainer logged at steps without
_MIN_STEPS, _OF_INTERVAL = 20, 0.3
"""From so many steps on a change has to be this share of its interval over steps, which knows of policies that wander:
then 0 to 6 % of these move, and 91 % of shares that rise by 20 points in 60 steps of 16 groups; at .5 1 % and 63 %."""
_MUCH = 0.1  # of the share of dead groups, by which it moves from its first fifth of steps to its last
_Ends = dict[str, tuple[float, float]]


def _ends(report: results.DegeneracyReport) -> _Ends | None:
    """Each kind's share of groups in the first and in the last fifth of steps, where that of dead ones surely moves."""
    size = len(report.course.step) // 5
    if size < 2 or None in report.course.frac_reward_zero_std:
        return None
    names = ("frac_reward_zero_std", "frac_all_fail", "frac_all_pass")
    shares, *_ = columns = [[share or 0.0 for share in getattr(report.course, name)] for name in names]
    ends = {name: (fmean(col[:size]), fmean(col[-size:])) for name, col in zip(names, columns, strict=True)}
    first, last = (_fifth_estimate(report, share) for share in ends["frac_reward_zero_std"])
    change = difference_of(first, last)
    if not change.side_of_zero or abs(change.value or 0.0) < _MUCH:
        return None
    if len(shares) < _MIN_STEPS:
        return ends
    from gradscope.metrics.uncertainty.steps import changes_between

    (by_steps,) = changes_between(shares, [(slice(0, size), slice(len(shares) - size, len(shares)))])
    return ends if abs(by_steps.value or 0.0) > _OF_INTERVAL * (by_steps.ends[1] - by_steps.ends[0]) else None


def _fifth_estimate(report: results.DegeneracyReport, share: float) -> Estimate:
    num_steps = len(report.course.step)
    low, high = wilson_interval(share, report.num_groups * (num_steps // 5) / num_steps)
    return Estimate(value=share, low=low, high=high)


def share_at_end(report: results.DegeneracyReport) -> Estimate | None:
    """The share of dead groups in the last fifth of steps, where it surely is another one than at first; else None."""
    ends = _ends(report)
    return None if ends is None else _fifth_estimate(report, ends["frac_reward_zero_std"][1])


def last_fifth(report: results.DegeneracyReport) -> str:
    """The last fifth of the steps by their names."""
    return f"steps {report.course.step[-(len(report.course.step) // 5)]} to {report.course.last_step[-1]}"


def moved_sentence(report: results.DegeneracyReport) -> str:
    """That the share at the end is another one than that of the whole log; empty where it is not."""
    ends = _ends(report)
    if ends is None:
        return ""
    first, last = ends["frac_reward_zero_std"]
    caution = "; groups differ in size, and smaller ones are dead more often by chance"
    return (
        f"Their share goes from {percent(first)} of the first fifth of steps to {percent(last)} of the last "
        f"({last_fifth(report)}){'' if report.group_size or report.usual_size else caution}."
    )


def _sudden(report: results.DegeneracyReport) -> list[int]:
    """Steps without a live group where most groups of the five steps before were live, beyond chance."""
    steps, num_groups = report.course.step, report.num_groups / max(len(report.course.step), 1)
    before, sudden = list[float](), list[int]()
    for step, share in zip(steps, report.course.frac_reward_zero_std, strict=True):
        usual = (sum(before[-5:]) * num_groups + 1) / (5 * num_groups + 2)
        if share == 1 and len(before) >= 5 and usual < 0.5 and len(steps) * usual**num_groups < _SIGNIFICANT:
            sudden.append(step)
        elif share is not None:
            before.append(share)
    return sudden


def ends_dead(report: results.DegeneracyReport) -> bool:
    """Whether no group has had a gradient since some step, the last two or more, and most had one before."""
    steps = _sudden(report)
    return len(steps) > 1 and steps == list(report.course.step[-len(steps) :])


def sudden_sentence(report: results.DegeneracyReport) -> str:
    """That all groups die at once at some steps; empty where they do not."""
    steps = _sudden(report)
    if ends_dead(report):
        return f"No group has had a gradient since step {steps[0]}, for {len(steps):,} steps; before, most had one."
    return f"No group had a gradient at {named_steps(steps)}, before which most had one." if steps else ""


def _too_hard_and_too_easy(report: results.DegeneracyReport) -> tuple[float, float] | None:
    """Shares of groups that fail and that pass throughout; of prompts where only the main reward has a threshold."""
    fail, solve = report.frac_all_fail.value, report.frac_all_pass.value
    if fail is not None and solve is not None:
        return fail, solve
    hard, easy = report.prompts.never_groups, report.prompts.always_groups
    return None if hard is None or easy is None else (hard / report.num_groups, easy / report.num_groups)

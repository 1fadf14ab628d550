"""Sentences about the signal: what dead groups cost, whether prompts differ, and what would bring the signal back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import difference_of
from gradscope.results.degeneracy import DegeneracyReport, GroupSizeDegeneracy
from gradscope.results.signal import RewardConflict, RewardFunction, SideRewards, TargetDegeneracy, TargetPlan
from gradscope.say import amount, chance, percent, points, with_interval

_SIGNIFICANT = 0.05
_FILTERED = -3.0
"""Standard deviations below which groups agree too rarely to be a whole log."""


def cost_finding(report: DegeneracyReport) -> str:
    """What share of the training signal was lost; empty where every group is alive."""
    cost = report.starvation
    is_part = report.reward_conflict is not None and report.reward == report.reward_conflict.main
    if not cost.frac_rollouts.value or cost.dilution.value is None or is_part:
        return ""
    shares = (
        (cost.frac_rollouts.value, "rollouts"),
        (cost.frac_tokens.value, "completion tokens"),
        (cost.frac_generation_time.value, "generation time"),
    )
    lost = " and ".join(f"{percent(share)} of {resource}" for share, resource in shares if share is not None)
    batch, effective = cost.batch_size.value or 0.0, cost.effective_batch_size.value or 0.0
    return f"Signal lost: {lost}; of {amount(batch)} rollouts a step {amount(effective)} count."


def dispersion_finding(report: DegeneracyReport) -> str:
    """Whether groups of a step are seen to differ in pass rate, and prompts with them; empty where that is untested."""
    tested = report.overdispersion
    if tested.z.value is None or tested.p_value.value is None:
        return ""
    evidence = f"z = {tested.z.value:.1f}, {chance(tested.p_value.value)}, {tested.test}"
    if tested.z.value < _FILTERED:
        return (
            f"Rollouts of a group agree less often than chance would have it ({evidence}): a filter may have dropped "
            "dead groups before they were logged, and the share is then a lower bound."
        )
    if tested.p_value.value > _SIGNIFICANT:
        return (
            "Whether groups of a step differ in pass rate cannot be told: one rate for all is not refuted "
            f"({evidence}){_not_excluded(tested.rate_variance)}."
        )
    text = f"Chance does not explain them: the groups of a step differ in pass rate ({evidence})"
    stays, of_visit = tested.between_prompts, tested.between_visits
    if not (stays.is_defined and of_visit.is_defined):
        return (
            f"{text}, by their prompts or by what the rollouts of a group share: only prompts that return would tell."
        )
    return (
        f"{text}. Where prompts return, {with_interval(stays, 'z.3f')} of the variance stays with the prompt and "
        f"{with_interval(of_visit, 'z.3f')} is of the visit."
    )


def _not_excluded(rate_variance: Estimate) -> str:
    """How far pass rates may differ all the same; their variance over the whole log is at least that within steps."""
    if rate_variance.high is None:
        return ""
    return f", nor is a standard deviation of {max(rate_variance.high, 0.0) ** 0.5:.2f} between pass rates"


def remedy_finding(report: DegeneracyReport, doubled: GroupSizeDegeneracy | None) -> str:
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


def target_finding(report: DegeneracyReport) -> str:
    """What it takes to reach the target; empty where there is none."""
    target = report.target
    if target is None:
        return ""
    now, larger, resampling = target.plans
    if now.degeneracy.value is not None and now.degeneracy.value <= target.target:
        return f"At most {percent(target.target)} dead groups: already so at G = {now.group_size}."
    ways = [_larger(larger), _resampling(target, resampling)]
    return f"At most {percent(target.target)} dead groups: {'; '.join(ways)}."


def conflict_findings(conflict: RewardConflict | None) -> tuple[str, ...]:
    """That a main reward has no say where others decide, and what to do; nothing where there is no such group."""
    if conflict is None:
        return ()
    return (conflict_sentence(conflict), conflict_advice(conflict))


def conflict_sentence(conflict: RewardConflict) -> str:
    """That a main reward has no say where others decide."""
    share = conflict.advantage_share.value
    weight = "" if share is None else f", which hold {percent(share)} of all squared advantages"
    text = f"{with_interval(conflict.frac_groups, percent)} of the groups"
    text = (
        f"'{conflict.deciding}' alone decides {text}"
        if conflict.is_alone
        else f"Side rewards decide {text}, most of all '{conflict.deciding}'"
    )
    return f"{text}: '{conflict.main}' is tied in these {conflict.num_groups:,}{weight}."


def conflicts_of_runs(runs: Sequence[SideRewards]) -> Iterator[str]:
    """What a comparison of dead groups does not show: those that side rewards decide, and gains that are none."""
    improved = {one.run: text for one in runs if (text := _no_gain(runs[0], one))}
    yield from improved.values()
    for one in runs:
        if one.conflict is not None and one.run not in improved:
            yield f"In {one.run} {conflict_sentence(one.conflict)}"


def _no_gain(first: SideRewards, second: SideRewards) -> str:
    """That a run has fewer dead groups than another only because side rewards decide them; empty where it has not."""
    conflict, before = second.conflict, first.conflict
    shares = [one.frac_main_differs for one in (first, second)]
    dead = [one.frac_reward_zero_std.value or 0.0 for one in (first, second)]
    more = conflict is not None and (conflict.frac_groups.value or 0.0) > (
        (before.frac_groups.value or 0.0) if before else 0.0
    )
    if conflict is None or not more or dead[1] >= dead[0] or None in (shares[0].value, shares[1].value):
        return ""
    if difference_of(*shares).side_of_zero > 0:
        return ""
    return (
        f"{second.run} has fewer groups without a gradient than {first.run} ({percent(dead[1])} for "
        f"{percent(dead[0])}), which shows no improvement: '{conflict.deciding}' decides "
        f"{percent(conflict.frac_groups.value or 0.0)} of them, and '{conflict.main}' differs in "
        f"{with_interval(shares[1], percent)}, in {first.run} in {with_interval(shares[0], percent)}."
    )


def conflict_advice(conflict: RewardConflict) -> str:
    """What to do about groups that side rewards decide."""
    others = f"'{conflict.deciding}'" if conflict.is_alone else "side rewards"
    weight = f"ive {others} no weight where '{conflict.main}' is tied."
    left = conflict.difference_share.value
    if not conflict.remedy or left is None:
        return f"G{weight}"
    return f"Try {conflict.remedy}: these groups then have {percent(left)} of all squared advantages. Or g{weight}"


def reward_findings(report: DegeneracyReport) -> tuple[str, ...]:
    """How often each reward function is tied and what it makes of the advantage; nothing for a single one."""
    rows = [row for row in report.by_reward if row.frac_tied.value is not None and row.weight != 0]
    rescuable = [_rescuable(row, report) for row in report.by_reward if row.num_rescuable]
    if len(rows) < 2:
        return tuple(rescuable)
    ranked = sorted(rows, key=lambda row: row.frac_tied.value or 0.0)
    sentences = [f"By reward function: {'; '.join(map(_of_function, ranked))}."]
    named = [row for row in rows if row.advantage_share.is_defined]
    if named:
        sentences.append(f"Shares of the squared advantage are of {report.advantages_of}.")
    alone = [f"'{row.name}' in {row.num_alone:,}" for row in rows if row.num_alone]
    if alone and report.reward_conflict is None:
        sentences.append(f"Alone in telling rollouts of a group apart: {', '.join(alone)} groups.")
    return (*sentences, *rescuable)


def _of_function(row: RewardFunction) -> str:
    text = f"'{row.name}' is tied in {percent(row.frac_tied.value or 0.0)} of groups"
    for share, kind in ((row.advantage_share, "advantage"), (row.difference_share, "reward differences")):
        if share.value is not None:
            return f"{text} and makes {signed_percent(share.value)} of the squared {kind}"
    return text


def signed_percent(share: float) -> str:
    """A share that may be negative, in per cent."""
    return f"-{percent(-share)}" if share < 0 else percent(share)


def policy_finding(report: DegeneracyReport) -> str:
    """What pooling several policies does to the gap; empty for a log of one policy."""
    split = report.policy_gap
    if split is None or split.between_prompts.value is None or split.between_policies.value is None:
        return ""
    return (
        f"The log pools {len(report.by_policy)} policies: of the gap, {points(split.between_prompts.value)} points "
        f"come from groups that differ for the same policy and {points(split.between_policies.value)} from "
        "policies that differ."
    )


def _rescuable(row: RewardFunction, report: DegeneracyReport) -> str:
    return (
        f"'{row.name}' differs within {row.num_rescuable} groups that '{report.reward}' leaves equal: with a weight "
        "for it they would have a gradient, its own."
    )


def _larger(plan: TargetPlan) -> str:
    if plan.degeneracy.value is None:
        return f"by larger groups not within reach ({plan.degeneracy.undefined})"
    return f"G = {plan.group_size} ({plan.method}{_tokens(plan)})"


def _resampling(target: TargetDegeneracy, plan: TargetPlan) -> str:
    if plan.rollouts_per_group.value is None:
        return f"by resampling not possible ({plan.rollouts_per_group.undefined})"
    return f"or {plan.rollouts_per_group.value:.1f} rollouts sampled for each group by resampling{_tokens(plan, ' (')}"


def _tokens(plan: TargetPlan, opening: str = ", ") -> str:
    if plan.tokens_per_group.value is None:
        return ""
    return f"{opening}{plan.tokens_per_group.value:,.0f} tokens a group{')' if opening == ' (' else ''}"

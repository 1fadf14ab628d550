"""Sentences about the signal: what dead groups cost, whether prompts differ, and what would bring the signal back."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.results.degeneracy import DegeneracyReport, GroupSizeDegeneracy
from gradscope.results.signal import RewardTies, TargetDegeneracy, TargetPlan
from gradscope.say import amount, chance, percent, points, with_interval

_SIGNIFICANT = 0.05
_FILTERED = -3.0
"""Standard deviations below which groups agree too rarely to be a whole log."""


def cost_finding(report: DegeneracyReport) -> str:
    """What share of the training signal was lost; empty where every group is alive."""
    cost = report.starvation
    if not cost.frac_rollouts.value or cost.dilution.value is None:
        return ""
    shares = (
        (cost.frac_rollouts.value, "rollouts"),
        (cost.frac_tokens.value, "completion tokens"),
        (cost.frac_generation_time.value, "generation time"),
    )
    lost = " and ".join(f"{percent(share)} of {resource}" for share, resource in shares if share is not None)
    batch, effective = cost.batch_size.value or 0.0, cost.effective_batch_size.value or 0.0
    return (
        f"Signal lost: {lost} were spent on groups without a gradient. Of {amount(batch)} rollouts a step "
        f"{amount(effective)} count, and a loss averaged over all of them is scaled by {cost.dilution.value:.2f}."
    )


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
        f"{text}. Where prompts return, {with_interval(stays, '.3f')} of the variance stays with the prompt and "
        f"{with_interval(of_visit, '.3f')} is of the visit."
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


def reward_findings(report: DegeneracyReport) -> tuple[str, ...]:
    """Which reward functions tie groups and which tell them apart; nothing for a single one."""
    rows = [row for row in report.by_reward if row.frac_zero_std.value is not None]
    if not rows:
        return ()
    ranked = sorted(rows, key=lambda row: row.frac_zero_std.value or 0.0)
    text = "; ".join(f"'{row.reward}' ties {percent(row.frac_zero_std.value or 0.0)}" for row in ranked)
    sentences = [f"By reward function, of the same groups: {text}."]
    alone = [f"'{row.reward}' in {row.num_alone}" for row in rows if row.num_alone]
    if alone:
        sentences.append(f"Alone in telling rollouts of a group apart: {', '.join(alone)} groups.")
    sentences += [_rescuable(row, report) for row in rows if row.num_rescuable]
    return tuple(sentences)


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


def _rescuable(row: RewardTies, report: DegeneracyReport) -> str:
    return (
        f"'{row.reward}' differs within {row.num_rescuable} groups that '{report.reward}' leaves equal: a larger "
        "weight for it would revive them."
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

"""Claims about a step's gradient: sparser over training, the best baseline, and where its parts by kind of group point.

Shapes: R rollouts of a step, J groups, G rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.claims.claim import Judgement, cannot_tell, in_range, on_side, rises
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.rank.formulations.kinds import kinds_of
from gradscope.diagnostics.rank.formulations.reward_baselines import measure_baselines
from gradscope.diagnostics.rank.formulations.updates import group_index
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import expected_updates, pass_at_k_weights
from gradscope.metrics.gram.reward_baselines import optimal_baseline_of_group
from gradscope.metrics.gram.spectrum import Array
from gradscope.metrics.uncertainty.bounded import bounded_means
from gradscope.metrics.uncertainty.steps import FEWEST_STEPS
from gradscope.metrics.uncertainty.trend import trend, trend_within
from gradscope.results.claims import ClaimVerdict
from gradscope.results.rank import GroupKind
from gradscope.rollouts.groups import reward_table
from gradscope.say import number, with_interval

SPARSER = 0.02
"""The least change of an index from 0 to 1 over training that is called growth."""
SAME_DIRECTION = 0.9
"""Cosines of expected updates from here on are the same direction, within 26 degrees; to climb takes one above 0."""
SAME_BASELINE = 0.05
"""A baseline as near to the mean reward as this share of the range of the run's rewards is no other."""
_OTHER_PROMPTS = (
    "the prompts change between these steps, and a change of prompts may look the same; steps of the same prompts tell"
)
_NO_RETURN = "no prompt returns, so a change of prompts may look the same"
_NO_SPREAD = 1e-9


def rows_grow_sparser(evidence: Evidence) -> Judgement:
    """Gini of the rollouts' row norms over the checkpoints."""
    return _sparser(evidence, {step.step: step.sparsity["gini"] for step in evidence.gradients("rollout").steps})


def tokens_grow_sparser(evidence: Evidence) -> Judgement:
    """Gini of the tokens' row norms over the checkpoints."""
    return _sparser(evidence, {row.step: row.gini for row in evidence.gradients("token").sparsity})


def entries_grow_sparser(evidence: Evidence) -> Judgement:
    """Gini of the entries of each weight's gradient, mean over weights, over the checkpoints."""
    by_step: dict[int, list[float]] = {}
    for row in evidence.gradients("weight").sparsity:
        if row.gini.value is not None:
            by_step.setdefault(row.step, []).append(row.gini.value)
    return _sparser(evidence, {step: Estimate.exact(fmean(values)) for step, values in by_step.items()})


def groups_grow_sparser(evidence: Evidence) -> Judgement:
    """Share of groups without a gradient over all steps of the log, within the prompts that return."""
    table = evidence.groups()
    prompts, index = np.unique(table.prompt, return_inverse=True)
    order = np.lexsort((table.step, index))
    again = (np.diff(index[order]) == 0) & (np.diff(table.step[order]) > 0)
    num_returning = len(np.unique(index[order][1:][again]))
    if not num_returning:
        return cannot_tell(_NO_RETURN)
    change = trend_within(table.step, index, table.dead.astype(np.float64)).within(-1.0, 1.0)
    why = f"Within the {num_returning} of {len(prompts)} prompts that return"
    return _grown(change, tuple(np.unique(table.step).tolist()), why)


def _sparser(evidence: Evidence, by_step: Mapping[int, Estimate]) -> Judgement:
    known = {step: index.value for step, index in sorted(by_step.items()) if index.value is not None}
    steps = tuple(known)
    if not known:
        return cannot_tell("No step has such a gradient")
    change = trend(steps, list(known.values())).within(-1.0, 1.0)
    if change.is_defined and len({_prompts(evidence, step) for step in steps}) > 1:
        value = Estimate.exact(change.value or 0.0, num_units=change.num_units)
        return cannot_tell(_OTHER_PROMPTS, estimate=value, steps=steps)
    low, high = min(known.values()), max(known.values())
    return _grown(change, steps, f"Of values from {number(low, '.2f')} to {number(high, '.2f')}, of the same prompts")


def _prompts(evidence: Evidence, step: int) -> tuple[str, ...]:
    return tuple(sorted(group.prompt_id for group in evidence.run.groups_at(step)))


def _grown(change: Estimate, steps: tuple[int, ...], of: str) -> Judgement:
    if change.undefined is not None:
        return cannot_tell(change.undefined, estimate=change, steps=steps)
    if change.ends[1] - change.ends[0] < _NO_SPREAD:
        change = Estimate.exact(change.value or 0.0, num_units=change.num_units)
        return cannot_tell("the steps lie on one line, so nothing tells the noise", estimate=change, steps=steps)
    few = "" if change.num_units >= FEWEST_STEPS else "; so few hardly tell a trend from steps like their neighbors"
    return Judgement(
        estimate=change,
        null=Estimate.exact(0.0),
        verdict=rises(change, 0.0, SPARSER),
        why=f"{of}, along the line through {change.num_units} steps from {steps[0]} to {steps[-1]}{few}.",
        steps=steps,
    )


def group_mean_is_optimal(evidence: Evidence) -> Judgement:
    """Whether the least noisy constant of a group, E[|s|^2 r] / E[|s|^2], is the group's mean reward.

    It is where reward and squared norm are uncorrelated (Greensmith, Bartlett & Baxter 2004). Groups of equal rewards
    say nothing: every baseline between their rewards is that reward.

    Returns:
        The judgement on the mean distance, over the groups of all steps.
    """
    found = evidence.gradients("rollout")
    steps = tuple(step.step for step in found.steps)
    mixed = [group for group in found.baseline_groups if group.is_mixed]
    best = [optimal_baseline_of_group(group.rewards, group.squared_norms).value for group in mixed]
    apart = [[one - group.rewards.mean()] for one, group in zip(best, mixed, strict=True) if one is not None]
    if not apart:
        return cannot_tell("no group with unequal rewards has a gradient", steps=steps)
    reach = float(np.ptp(_rewards(evidence)))
    (distance,) = bounded_means(apart, low=-reach, high=reach)
    margin = SAME_BASELINE * reach
    whole = measure_baselines(found.baseline_groups)[0]
    without = whole.relative_noise["optimal_leave_one_out"]
    return Judgement(
        estimate=distance,
        null=Estimate.exact(0.0),
        verdict=in_range(distance, -margin, margin),
        why=f"Over {len(apart)} groups of unequal rewards. Correlation of reward and squared norm "
        f"{_or_unknown(whole.reward_norm_correlation)}; taken from the other rollouts the least "
        f"noisy constant leaves {_or_unknown(without)} of leave-one-out's noise.",
        steps=steps,
    )


def _rewards(evidence: Evidence) -> NDArray[np.float64]:
    rewards = reward_table(evidence.run.groups).reward
    return rewards[~np.isnan(rewards)]


def sign_part_climbs(part: GroupKind, target: Literal["pass@1", "pass@G"]) -> Callable[[Evidence], Judgement]:
    """Whether what Sign makes of one kind of group climbs pass@1 or pass@G: whether their cosine is above 0.

    Args:
        part: The kind of group.
        target: What the direction is held against.

    Returns:
        A judge, at the step with most groups of that kind.
    """
    return partial(_sign_part, part, target, on_side)


def sign_part_is_the_direction(part: GroupKind, target: Literal["pass@1", "pass@G"]) -> Callable[[Evidence], Judgement]:
    """Whether it points where that rises, and nowhere else: a cosine near 1; see :func:`sign_part_climbs`."""
    return partial(_sign_part, part, target, partial(in_range, low=SAME_DIRECTION, high=1.0))


def _sign_part(part: GroupKind, target: str, rule: Callable[[Estimate], ClaimVerdict], evidence: Evidence) -> Judgement:
    rows = [_binary_rows(evidence, step.step) for step in evidence.gradients("rollout").steps]
    known = [one for one in rows if one is not None]
    if not known:
        return cannot_tell("The rewards are not 0 and 1 in groups of two or more of one size")
    chosen = max(known, key=lambda one: int(kinds_of(one)[part].sum()))
    groups, mine = group_index(chosen), kinds_of(chosen)[part]
    num_groups, size = len(np.unique(groups[mine])), int(np.sum(groups == 0))
    if not num_groups:
        return cannot_tell(f"No group of these steps is {part.replace('_', '-')}", steps=(chosen.step,))
    climbs = _in_groups(chosen, lambda rewards: pass_at_k_weights(rewards, 1 if target == "pass@1" else size))
    own = np.where(mine, 2 * chosen.rewards - 1, 0.0)
    cosine = expected_updates(chosen.gram, [own, climbs], groups).cosine(0, 1)
    return Judgement(
        estimate=cosine,
        null=Estimate.exact(0.0),
        verdict=rule(cosine),
        why=f"{num_groups} such groups of {groups.max() + 1}, G = {size}"
        f"{'' if cosine.undefined is None else f': {cosine.undefined}'}.",
        steps=(chosen.step,),
    )


def _or_unknown(estimate: Estimate) -> str:
    return with_interval(estimate, ".2f") if estimate.is_defined else "unknown"


def _binary_rows(evidence: Evidence, step: int) -> StepRows | None:
    rows = evidence.rows(step)
    sizes = set(np.unique(rows.group_ids, return_counts=True)[1].tolist())
    return rows if np.isin(rows.rewards, (0.0, 1.0)).all() and len(sizes) == 1 and sizes != {1} else None


def _in_groups(rows: StepRows, function: Callable[[Array], Array]) -> Array:
    """A function of each group's rewards, in the order of the step's rollouts, [R]."""
    groups, values = group_index(rows), np.empty(len(rows.rewards))
    for group in range(int(groups.max()) + 1):
        values[groups == group] = function(rows.rewards[groups == group])
    return values

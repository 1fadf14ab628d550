"""Two single runs: how far they differ, with intervals that resample the prompts of each.

One run a side leaves nothing to tell a setting from a seed's luck, so no test is made of these intervals. Legend: J
groups, S steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.compare.runs import ComparedRun
from gradscope.diagnostics.degeneracy.reward_functions import side_rewards
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import EQUAL_REWARDS
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_statistics
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.difference import difference_of
from gradscope.results.compare import ComparedPair
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.reward_table import RewardTable

Floats = NDArray[np.float64]


def with_prompts_resampled(
    pairs: Sequence[ComparedPair], first: ComparedRun, second: ComparedRun
) -> tuple[ComparedPair, ...]:
    """Pairs of one run each, with the interval that their prompts give.

    Args:
        pairs: The metrics of the two runs.
        first: The run that is subtracted.
        second: The other.

    Returns:
        The same pairs. A metric that is not a mean over groups, such as the drawdown, has no such interval; nor has a
        run whose rollouts cannot be read.
    """
    before, after = _means(first), _means(second)
    return tuple(
        replace(pair, within_runs=difference_of(before[pair.metric], after[pair.metric]))
        if pair.metric in before.keys() & after.keys()
        else pair
        for pair in pairs
    )


def with_side_rewards(run: ComparedRun) -> ComparedRun:
    """A run with how much of it its main reward decides, for which one of ours is read."""
    if run.sides is not None:
        return run
    try:
        return replace(run, sides=side_rewards(read_run(run.path, rewards_only=True), ""))
    except GradscopeError:
        return run


def _means(run: ComparedRun) -> Mapping[str, Estimate]:
    """The means of a run's steps that are means over its groups."""
    table = run.rewards
    if run.log is not None and run.log.kind == "metrics":
        return {}
    if table is None:
        try:
            table = reward_table(read_run(run.path, rewards_only=True).groups)
        except GradscopeError:
            return {}
        table = table.select(table.sums(np.isnan(table.reward)) == 0)
    if not len(table):
        return {}
    is_dead = (table.size > 1) & (table.spread(table.reward) <= EQUAL_REWARDS)
    return {
        "train_reward": _mean_of_steps(table, table.sums(table.reward) / table.size, table.size.astype(np.float64)),
        "mean_frac_reward_zero_std": _mean_of_steps(table, is_dead.astype(np.float64), np.ones(len(table))),
    }


def _mean_of_steps(table: RewardTable, values: Floats, counts: Floats) -> Estimate:
    """Mean over steps of each step's mean over what is counted, all steps alike; prompts are resampled.

    Args:
        table: Of the groups.
        values: One a group, [J].
        counts: How often it counts within its step, [J].

    Returns:
        The mean.
    """
    of_group = np.unique(table.step, return_inverse=True)[1]
    weights = counts / np.bincount(of_group, weights=counts)[of_group]
    low, high = float(values.min()), float(values.max())
    if np.ptp(weights) <= 1e-12 * weights[0]:
        return bootstrap_mean(values, table.prompt, share=low >= 0.0 and high <= 1.0)
    units = cluster_sums(np.column_stack([weights * values, weights]), table.prompt)
    (mean,) = bootstrap_statistics(lambda sums: sums[..., :1] / sums[..., 1:], units, within=(low, high))
    return mean

"""What degenerate groups cost: rollouts, tokens, and the batch that is left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_sums
from gradscope.results.signal import SignalCost

Array = NDArray[np.float64]

NO_TOKENS = "token ids of the completions were not logged"
NO_TIMES = "no generation time of each rollout was read from the log"


def measure_cost(
    chosen: GroupRewards, table: GroupTable, zero_std: Estimate, *, num_resamples: int, seed: int
) -> SignalCost:
    """The cost of the degenerate groups of a log.

    Args:
        chosen: The groups.
        table: The same groups as a table.
        zero_std: Their share of degenerate groups.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        Shares of rollouts, tokens and generation time, batch sizes, dilution and the resampling factor.
    """
    size = table.size.astype(np.float64)
    rollouts = _share_lost(size, table, num_resamples=num_resamples, seed=seed)
    tokens, seconds = num_tokens(chosen), num_seconds(chosen)
    unknown = Estimate.undefined_because(NO_TOKENS, num_units=rollouts.num_units)
    num_steps = len(np.unique(table.step))
    return SignalCost(
        frac_rollouts=rollouts,
        frac_tokens=unknown if tokens is None else _share_lost(tokens, table, num_resamples=num_resamples, seed=seed),
        frac_generation_time=Estimate.undefined_because(NO_TIMES, num_units=rollouts.num_units)
        if seconds is None
        else _share_lost(seconds, table, num_resamples=num_resamples, seed=seed),
        tokens_per_rollout=unknown
        if tokens is None
        else Estimate.exact(float(tokens.sum() / size.sum()), num_units=int(size.sum())),
        batch_size=Estimate.exact(float(size.sum() / num_steps), num_units=num_steps),
        effective_batch_size=Estimate.exact(float(size[~table.dead].sum() / num_steps), num_units=num_steps),
        dilution=rollouts.map(lambda lost: 1.0 - lost),
        resampling_factor=_resampling_factor(zero_std),
    )


def num_tokens(chosen: GroupRewards) -> Array | None:
    """Completion tokens of each group.

    Args:
        chosen: The groups.

    Returns:
        Their numbers, [J]; None where a rollout has no token ids.
    """
    totals = np.zeros(len(chosen.groups))
    for row, (group, _) in enumerate(chosen.groups):
        for rollout in group.rollouts:
            if rollout.completion_ids is None:
                return None
            totals[row] += len(rollout.completion_ids)
    return totals if totals.sum() > 0 else None


def num_seconds(chosen: GroupRewards) -> Array | None:
    """Seconds that each group took to generate, rollout after rollout.

    Args:
        chosen: The groups.

    Returns:
        Their times, [J]; None where a rollout was not timed.
    """
    totals = np.zeros(len(chosen.groups))
    for row, (group, _) in enumerate(chosen.groups):
        for rollout in group.rollouts:
            if rollout.seconds is None:
                return None
            totals[row] += rollout.seconds
    return totals if totals.sum() > 0 else None


def _share_lost(amount: Array, table: GroupTable, *, num_resamples: int, seed: int) -> Estimate:
    """The part of an amount per group that lies in degenerate groups."""
    units = cluster_sums(np.column_stack([amount * table.dead, amount]), table.prompt)
    (share,) = bootstrap_statistics(
        lambda sums: sums[..., :1] / sums[..., 1:], units, within=(0.0, 1.0), num_resamples=num_resamples, seed=seed
    )
    return share


def _resampling_factor(zero_std: Estimate) -> Estimate:
    value = zero_std.value or 0.0
    if value >= 1.0:
        return Estimate.undefined_because(
            "no group is alive, so no number of groups would give one", num_units=zero_std.num_units
        )
    if zero_std.ends[1] >= 1.0:
        return Estimate.exact(1.0 / (1.0 - value), num_units=zero_std.num_units)
    return zero_std.map(lambda share: 1.0 / (1.0 - share))

"""What degenerate groups cost: rollouts, tokens, and the batch that is left."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.studentized import cluster_sums
from gradscope.results.signal import SignalCost

Array = NDArray[np.float64]

NO_TOKENS = "token ids of the completions were not logged"
NO_TIMES = "no generation time of each rollout was read from the log"


def measure_cost(chosen: GroupRewards, table: GroupTable, zero_std: Estimate, *, resampling: Resampling) -> SignalCost:
    """The cost of a log's degenerate groups, whose share is ``zero_std``; ``table`` holds the same groups."""
    size = table.size.astype(np.float64)
    rollouts = _share_lost(size, table, resampling=resampling)
    tokens, seconds = num_tokens(chosen), num_seconds(chosen)
    unknown = Estimate.undefined_because(NO_TOKENS, num_units=rollouts.num_units)
    num_steps = len(np.unique(table.step))
    return SignalCost(
        frac_rollouts=rollouts,
        frac_tokens=unknown if tokens is None else _share_lost(tokens, table, resampling=resampling),
        frac_generation_time=Estimate.undefined_because(NO_TIMES, num_units=rollouts.num_units)
        if seconds is None
        else _share_lost(seconds, table, resampling=resampling),
        tokens_per_rollout=unknown
        if tokens is None
        else Estimate.exact(float(tokens.sum() / size.sum()), num_units=int(size.sum())),
        batch_size=Estimate.exact(float(size.sum() / num_steps), num_units=num_steps),
        effective_batch_size=Estimate.exact(float(size[~table.dead].sum() / num_steps), num_units=num_steps),
        dilution=rollouts.map(lambda lost: 1.0 - lost),
        resampling_factor=_resampling_factor(zero_std),
    )


def num_tokens(chosen: GroupRewards) -> Array | None:
    """Completion tokens of each group, [J]; None where a rollout has no token ids."""
    return _totals(chosen, chosen.table.num_tokens)


def num_seconds(chosen: GroupRewards) -> Array | None:
    """Seconds that each group took to generate, rollout after rollout, [J]; None where a rollout was not timed."""
    return _totals(chosen, chosen.table.seconds)


def _totals(chosen: GroupRewards, amounts: NDArray[Any] | None) -> Array | None:
    """Sums over groups of an amount that is not negative; None where it is not known of each rollout, or nowhere."""
    if amounts is None or not np.all(amounts >= 0):
        return None
    totals = chosen.table.sums(amounts).astype(np.float64)
    return totals if totals.sum() > 0 else None


def _share_lost(amount: Array, table: GroupTable, *, resampling: Resampling) -> Estimate:
    """The part of an amount per group that lies in degenerate groups."""
    units = cluster_sums(np.column_stack([amount * table.dead, amount]), table.prompt)
    (share,) = bootstrap_statistics(
        lambda sums: sums[..., :1] / sums[..., 1:], units, within=(0.0, 1.0), resampling=resampling
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

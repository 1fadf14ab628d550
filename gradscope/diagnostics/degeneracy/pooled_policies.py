"""Logs that pool several policies: each one's own groups, and what pooling them does to the gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.outcomes.groups import passes
from gradscope.metrics.outcomes.own_rates import estimate_policy_gap
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_means
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.degeneracy import PolicyDegeneracy, PolicyGap

Counts = NDArray[np.int64]


def policy_names(chosen: GroupRewards) -> tuple[str, ...]:
    """The names of a log's policies in its order; none where fewer than two have a group to judge."""
    table = chosen.table
    if table.policy is None:
        return ()
    names = tuple(table.policies[place] for place in np.unique(table.policy[table.policy >= 0]).tolist())
    return names if len(names) > 1 else ()


def measure_policies(
    chosen: GroupRewards, table: GroupTable, threshold: float | None, *, resampling: Resampling
) -> tuple[tuple[PolicyDegeneracy, ...], PolicyGap | None]:
    """Each policy of a log of several alone, and the gap split between prompts and policies where passing is known."""
    names = policy_names(chosen)
    if not names:
        return (), None
    passing, members = _counts(chosen, names, threshold)
    rows = []
    for place, name in enumerate(names):
        there = members[:, place] > 0
        prompts = table.prompt[there]
        rate = Estimate.undefined_because(NO_THRESHOLD, num_units=int(there.sum()))
        if passing is not None:
            shares = passing[there, place] / members[there, place]
            rate = bootstrap_mean(shares, prompts, resampling=resampling)
        alone = there & (members[:, place] == table.size)
        rows.append(
            PolicyDegeneracy(
                policy=name,
                num_groups=int(alone.sum()),
                num_rollouts=int(members[:, place].sum()),
                frac_reward_zero_std=_share(table, alone, resampling=resampling),
                pass_rate=rate,
            )
        )
    if passing is None:
        return tuple(rows), None
    between_prompts, between_policies = estimate_policy_gap(
        table.dead, passing, members, table.prompt, resampling=resampling
    )
    return tuple(rows), PolicyGap(between_prompts=between_prompts, between_policies=between_policies)


def _share(table: GroupTable, alone: NDArray[np.bool_], *, resampling: Resampling) -> Estimate:
    if not alone.any():
        return Estimate.undefined_because("no group is of this policy alone")
    (share,) = bootstrap_means(
        table.dead[alone].astype(np.float64)[:, None], table.prompt[alone], resampling=resampling
    )
    return share


def _counts(chosen: GroupRewards, names: tuple[str, ...], threshold: float | None) -> tuple[Counts | None, Counts]:
    """Passing rollouts (None: not known) and rollouts of each policy in each group, [J, M] each."""
    table, policy = chosen.table, np.asarray(chosen.table.policy)
    members = np.zeros((len(table), len(names)), dtype=np.int64)
    passing = None if threshold is None else np.zeros_like(members)
    for column, name in enumerate(names):
        own = np.equal(policy, table.policies.index(name))
        members[:, column] = table.sums(own)
        if passing is not None and threshold is not None:
            passing[:, column] = table.sums(own & passes(chosen.values, threshold))
    return passing, members

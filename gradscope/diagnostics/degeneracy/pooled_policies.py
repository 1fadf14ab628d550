"""Logs that pool several policies: each one's own groups, and what pooling them does to the gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, GroupTable
from gradscope.metrics.outcomes.groups import passes
from gradscope.metrics.outcomes.pooled_policies import estimate_policy_gap
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean, bootstrap_means
from gradscope.results.degeneracy import PolicyDegeneracy, PolicyGap

Counts = NDArray[np.int64]


def policy_names(chosen: GroupRewards) -> tuple[str, ...]:
    """The policies of a log.

    Args:
        chosen: The groups.

    Returns:
        Their names in the order of the log; none where there are fewer than two.
    """
    named = (rollout.policy for group, _ in chosen.groups for rollout in group.rollouts)
    names = tuple(name for name in dict.fromkeys(named) if name is not None)
    return names if len(names) > 1 else ()


def measure_policies(
    chosen: GroupRewards, table: GroupTable, threshold: float | None, *, num_resamples: int, seed: int
) -> tuple[tuple[PolicyDegeneracy, ...], PolicyGap | None]:
    """Each policy on its own, and the gap split between prompts and policies.

    Args:
        chosen: The groups.
        table: The same groups as a table.
        threshold: A rollout passes when its reward reaches this; None where that is not known.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        One entry a policy, and the split; neither for a log of one policy, and no split where what passes is not known.
    """
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
            rate = bootstrap_mean(shares, prompts, num_resamples=num_resamples, seed=seed)
        alone = there & (members[:, place] == table.size)
        rows.append(
            PolicyDegeneracy(
                policy=name,
                num_groups=int(alone.sum()),
                num_rollouts=int(members[:, place].sum()),
                frac_reward_zero_std=_share(table, alone, num_resamples=num_resamples, seed=seed),
                pass_rate=rate,
            )
        )
    if passing is None:
        return tuple(rows), None
    between_prompts, between_policies = estimate_policy_gap(
        table.dead, passing, members, table.prompt, num_resamples=num_resamples, seed=seed
    )
    return tuple(rows), PolicyGap(between_prompts=between_prompts, between_policies=between_policies)


def _share(table: GroupTable, alone: NDArray[np.bool_], *, num_resamples: int, seed: int) -> Estimate:
    if not alone.any():
        return Estimate.undefined_because("no group is of this policy alone")
    (share,) = bootstrap_means(
        table.dead[alone].astype(np.float64)[:, None], table.prompt[alone], num_resamples=num_resamples, seed=seed
    )
    return share


def _counts(chosen: GroupRewards, names: tuple[str, ...], threshold: float | None) -> tuple[Counts | None, Counts]:
    """Passing rollouts (None: not known) and rollouts of each policy in each group, [J, M] each."""
    place = {name: column for column, name in enumerate(names)}
    members = np.zeros((len(chosen.groups), len(names)), dtype=np.int64)
    passing = None if threshold is None else np.zeros_like(members)
    for row, (group, rewards) in enumerate(chosen.groups):
        passed = None if threshold is None else passes(rewards, threshold).tolist()
        for sample, rollout in enumerate(group.rollouts):
            if rollout.policy is not None:
                members[row, place[rollout.policy]] += 1
                if passing is not None and passed is not None:
                    passing[row, place[rollout.policy]] += passed[sample]
    return passing, members

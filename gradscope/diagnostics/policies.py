"""Logs that pool several policies: each one's own groups, and what pooling them does to the gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.bootstrap import bootstrap_mean, bootstrap_means
from gradscope.metrics.degeneracy import GroupTable
from gradscope.metrics.groups import passes
from gradscope.metrics.policies import estimate_policy_gap
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
        One entry a policy and the split; nothing where the log holds one policy or what passes is not known.
    """
    names = policy_names(chosen)
    if not names or threshold is None:
        return (), None
    passing, members = _counts(chosen, names, threshold)
    rows = []
    for place, name in enumerate(names):
        there = members[:, place] > 0
        prompts = table.prompt[there]
        rate = bootstrap_mean(
            passing[there, place] / members[there, place], prompts, num_resamples=num_resamples, seed=seed
        )
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
    between_prompts, between_policies = estimate_policy_gap(
        table.dead, passing, members, table.prompt, num_resamples=num_resamples, seed=seed
    )
    return tuple(rows), PolicyGap(between_prompts=between_prompts, between_policies=between_policies)


def _share(table: GroupTable, alone: NDArray[np.bool_], *, num_resamples: int, seed: int) -> Estimate:
    if not alone.any():
        return Estimate.because("no group is of this policy alone")
    (share,) = bootstrap_means(
        table.dead[alone].astype(np.float64)[:, None], table.prompt[alone], num_resamples=num_resamples, seed=seed
    )
    return share


def _counts(chosen: GroupRewards, names: tuple[str, ...], threshold: float) -> tuple[Counts, Counts]:
    """Passing rollouts and rollouts of each policy in each group, [J, M] each."""
    place = {name: column for column, name in enumerate(names)}
    passing = np.zeros((len(chosen.groups), len(names)), dtype=np.int64)
    members = np.zeros_like(passing)
    for row, (group, rewards) in enumerate(chosen.groups):
        for rollout, passed in zip(group.rollouts, passes(rewards, threshold).tolist(), strict=True):
            if rollout.policy is not None:
                members[row, place[rollout.policy]] += 1
                passing[row, place[rollout.policy]] += passed
    return passing, members

"""The part of the Jensen gap that comes from pooling several policies.

Legend: J groups, M policies, Q compositions (how many rollouts of each policy a group has), p_m pass rate of policy m.

A group whose rollouts come from policies with pass rates p_m is predicted to be degenerate with probability
prod p_m + prod (1 - p_m) over its rollouts. For groups of one policy each this is that policy's own p^G + (1-p)^G; for
groups with one rollout of each policy it lies below the pooled prediction, because unequal coins agree less often than
equal ones do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.clusters import cluster_sums
from gradscope.metrics.uncertainty.resampling import Resampling

Array = NDArray[np.float64]


def estimate_policy_gap(
    equal: ArrayLike,
    passing: ArrayLike,
    members: ArrayLike,
    prompts: ArrayLike,
    *,
    resampling: Resampling,
) -> tuple[Estimate, Estimate]:
    """The gap at the pooled pass rate, split into prompts and policies.

    Args:
        equal: Whether a group is degenerate, [J].
        passing: Passing rollouts of each policy in each group, [J, M].
        members: Rollouts of each policy in each group, [J, M].
        prompts: The prompt of each group, [J].
        resampling: How often, and from which seed.

    Returns:
        Between prompts (share minus the prediction at the policies' own rates) and between policies (that prediction
        minus the one at the pooled rate); they add up to the gap.

    Example:
        >>> between_prompts, between_policies = estimate_policy_gap(
        ...     [1, 1], [[2, 0], [0, 0]], [[2, 0], [0, 2]], ["a", "a"], resampling=Resampling(num_resamples=100)
        ... )
        >>> between_prompts.value, between_policies.value
        (0.0, 0.5)
    """
    rollouts = np.asarray(members, dtype=np.int64)
    compositions, index = np.unique(rollouts, axis=0, return_inverse=True)
    has = np.zeros((len(rollouts), len(compositions)))
    has[np.arange(len(rollouts)), index.reshape(-1)] = 1.0
    rate = np.asarray(passing, dtype=np.float64).sum(axis=1) / rollouts.sum(axis=1)
    columns = [np.asarray(equal, dtype=np.float64)[:, None], rate[:, None], has, np.asarray(passing, dtype=np.float64)]
    units = cluster_sums(np.column_stack([*columns, rollouts]), prompts)
    num_policies, num_compositions = rollouts.shape[1], len(compositions)
    sizes = compositions.sum(axis=1)

    def parts(sums: Array) -> Array:
        counts = sums[..., 2 : 2 + num_compositions]
        passed, drawn = np.split(sums[..., 2 + num_compositions :], [num_policies], axis=-1)
        total = counts.sum(axis=-1)
        # A policy that a resample leaves out has weight zero; its rate is then of no account.
        own = (passed / np.maximum(drawn, 1.0))[..., None, :]
        at_own = np.prod(own**compositions, axis=-1) + np.prod((1 - own) ** compositions, axis=-1)
        pooled = (sums[..., 1] / total)[..., None]
        at_pooled = pooled**sizes + (1 - pooled) ** sizes
        predicted, by_policy = ((counts * chance).sum(axis=-1) / total for chance in (at_pooled, at_own))
        return np.stack([sums[..., 0] / total - by_policy, by_policy - predicted], axis=-1)

    between_prompts, between_policies = bootstrap_statistics(parts, units, within=(-1.0, 1.0), resampling=resampling)
    return between_prompts, between_policies

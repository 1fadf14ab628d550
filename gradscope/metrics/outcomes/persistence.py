"""Whether a prompt whose group was dead is dead again when it comes back.

Shapes: J groups, V pairs of consecutive visits of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_sums
from gradscope.metrics.uncertainty.resampling import Resampling

Array = NDArray[np.float64]
_NO_RETURN = "no prompt comes back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Dead groups at the next visit of their prompts."""

    after_dead: Estimate
    """Share of dead groups whose prompt is dead at its next visit too."""
    after_live: Estimate
    """The same of live groups."""
    excess: Estimate
    """The first minus the second."""
    num_returns: int
    """Pairs of consecutive visits, V."""


def dead_persistence(step: ArrayLike, prompt: ArrayLike, dead: ArrayLike, *, resampling: Resampling) -> Persistence:
    """How much likelier a group is dead where its prompt was dead the last time; intervals resample prompts.

    Args:
        step: The step of each group, [J].
        prompt: Its prompt, [J].
        dead: Whether its rewards are all equal, [J].

    Returns:
        The shares; undefined where no prompt comes back, or none after a dead (or a live) group.

    Example:
        >>> steps, prompts = [1, 1, 2, 2] * 6, [f"{place // 4}{place % 2}" for place in range(24)]
        >>> found = dead_persistence(steps, prompts, [True, False] * 12, resampling=Resampling(num_resamples=50))
        >>> found.after_dead.value, found.after_live.value, found.num_returns
        (1.0, 0.0, 12)
    """
    names, index = np.unique(np.asarray(prompt), return_inverse=True)
    order = np.lexsort((np.asarray(step), index.reshape(-1)))
    owner, is_dead = index.reshape(-1)[order], np.asarray(dead, dtype=bool)[order]
    comes_back = owner[:-1] == owner[1:]
    before, after, who = is_dead[:-1][comes_back], is_dead[1:][comes_back], owner[:-1][comes_back]
    if not len(who):
        none = Estimate.undefined_because(_NO_RETURN)
        return Persistence(after_dead=none, after_live=none, excess=none, num_returns=0)
    if before.all() or not before.any():
        reason = f"every group before a return is {'dead' if before.all() else 'alive'}"
        none = Estimate.undefined_because(reason, num_units=len(names))
        return Persistence(after_dead=none, after_live=none, excess=none, num_returns=len(who))
    columns = np.column_stack([before & after, before, ~before & after, ~before]).astype(np.float64)
    units = cluster_sums(columns, who)

    def shares(sums: Array) -> Array:
        # a resample without a dead, or without a live, group before a return says nothing of its share
        dead_share = sums[..., 0] / np.maximum(sums[..., 1], 1.0)
        live_share = sums[..., 2] / np.maximum(sums[..., 3], 1.0)
        return np.stack([dead_share, live_share, dead_share - live_share], axis=-1)

    after_dead, after_live, excess = bootstrap_statistics(
        shares, units, within=([0.0, 0.0, -1.0], 1.0), resampling=resampling
    )
    return Persistence(after_dead=after_dead, after_live=after_live, excess=excess, num_returns=len(who))

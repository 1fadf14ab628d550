"""What each advantage formulation would have fed to the optimizer on the rewards of a log. Legend: J groups, G size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.formulation import Formulation
from gradscope.advantages.registry import FORMULATIONS, compute_advantages
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_sums
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.results.signal import AdvantageMass

Array = NDArray[np.float64]
Places = NDArray[np.int64]


def measure_advantage_mass(chosen: GroupRewards, *, resampling: Resampling) -> tuple[AdvantageMass, ...]:
    """Positive and negative mass and share of zeros by formulation; undefined where one refuses these rewards."""
    groups = chosen.table
    by_size = [(_kinds(rewards), places) for places, rewards in groups.by_size(chosen.values)]
    masses = []
    for entry in FORMULATIONS.values():
        sums = _sums(entry, by_size, len(groups))
        if isinstance(sums, str):
            unknown = Estimate.undefined_because(sums, num_units=len(groups))
            masses.append(
                AdvantageMass(advantage=entry.name, positive_mass=unknown, negative_mass=unknown, frac_zero=unknown)
            )
            continue
        positive, negative, zero = bootstrap_statistics(
            lambda totals: totals[..., :3] / totals[..., 3:],
            cluster_sums(sums, groups.prompt),
            within=(0.0, [np.inf, np.inf, 1.0]),
            resampling=resampling,
        )
        masses.append(
            AdvantageMass(advantage=entry.name, positive_mass=positive, negative_mass=negative, frac_zero=zero)
        )
    return tuple(masses)


def _kinds(rewards: Array) -> tuple[Array, Places]:
    """Different groups of one size, [k, G], and which of them each is, [j]: of two rewards there are at most G + 1."""
    levels = np.unique(rewards)
    if len(levels) > 2:
        return rewards, np.arange(len(rewards))
    high, size = np.sum(rewards == levels[-1], axis=1), rewards.shape[1]
    present = np.unique(high)
    return np.where(np.arange(size) < present[:, None], levels[-1], levels[0]), np.searchsorted(present, high)


def _sums(entry: Formulation, by_size: Sequence[tuple[tuple[Array, Places], Places]], num_groups: int) -> Array | str:
    """Positive mass, negative mass, zeros and rollouts of each group, [J, 4]; or why there is no such advantage."""
    sums = np.zeros((num_groups, 4))
    for (rewards, kind), places in by_size:
        reason = entry.why_not(rewards)
        if reason is not None:
            return reason
        advantages = compute_advantages(entry.name, rewards)
        parts = [np.maximum(advantages, 0.0), np.maximum(-advantages, 0.0), advantages == 0.0]
        size = np.full(len(rewards), rewards.shape[1])
        sums[places] = np.column_stack([*(part.sum(axis=1) for part in parts), size])[kind]
    return sums

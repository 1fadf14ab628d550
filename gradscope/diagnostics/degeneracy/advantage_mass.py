"""What each advantage formulation would have fed to the optimizer on the rewards of a log. Legend: J groups, G size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.formulation import Formulation
from gradscope.advantages.registry import FORMULATIONS, compute_advantages
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_sums
from gradscope.results.signal import AdvantageMass

Array = NDArray[np.float64]


def measure_advantage_mass(chosen: GroupRewards, *, num_resamples: int, seed: int) -> tuple[AdvantageMass, ...]:
    """Positive and negative mass and the share of zeros, formulation by formulation.

    Args:
        chosen: The groups.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        One entry a formulation of the registry; undefined where these rewards have no such advantage.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, (_, rewards) in enumerate(chosen.groups):
        by_size[len(rewards)].append(row)
    rewards_of_size = {
        size: np.array([chosen.groups[row][1] for row in rows], dtype=np.float64) for size, rows in by_size.items()
    }
    prompts = np.array([group.prompt_id for group, _ in chosen.groups], dtype=np.str_)
    masses = []
    for entry in FORMULATIONS.values():
        sums = _sums(entry, by_size, rewards_of_size)
        if isinstance(sums, str):
            unknown = Estimate.undefined_because(sums, num_units=len(chosen.groups))
            masses.append(
                AdvantageMass(advantage=entry.name, positive_mass=unknown, negative_mass=unknown, frac_zero=unknown)
            )
            continue
        positive, negative, zero = bootstrap_statistics(
            lambda totals: totals[..., :3] / totals[..., 3:],
            cluster_sums(sums, prompts),
            within=(0.0, [np.inf, np.inf, 1.0]),
            num_resamples=num_resamples,
            seed=seed,
        )
        masses.append(
            AdvantageMass(advantage=entry.name, positive_mass=positive, negative_mass=negative, frac_zero=zero)
        )
    return tuple(masses)


def _sums(
    entry: Formulation, by_size: Mapping[int, Sequence[int]], rewards_of_size: Mapping[int, Array]
) -> Array | str:
    """Positive mass, negative mass, zeros and rollouts of each group, [J, 4]; or why there is no such advantage."""
    sums = np.zeros((sum(len(rows) for rows in by_size.values()), 4))
    for size, rows in by_size.items():
        reason = entry.why_not(rewards_of_size[size])
        if reason is not None:
            return reason
        advantages = compute_advantages(entry.name, rewards_of_size[size])
        parts = [np.maximum(advantages, 0.0), np.maximum(-advantages, 0.0), advantages == 0.0]
        sums[rows] = np.column_stack([*(part.sum(axis=1) for part in parts), np.full(len(rows), size)])
    return sums

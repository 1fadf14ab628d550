"""The groups of a step, whole or cut into smaller ones, and the advantages of each.

Shapes: R rollouts of a step, G rollouts of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import gdpo, optimal_advantages
from gradscope.advantages.registry import LOGGED, compute_advantages, compute_step_advantages, formulation
from gradscope.diagnostics.rank.rollouts.step_rows import StepRows
from gradscope.errors import InputError
from gradscope.metrics.gram.spectrum import Array

WEIGHED = ("gram", "length")
"""Scopes of formulations whose baseline is a weighted mean of the group's rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """Rollouts that share a baseline: a group, or a part of one."""

    group_id: str
    """The group that they belong to."""
    index: NDArray[np.intp]
    """Their rows in the step, [G]."""
    samples: tuple[int, ...]
    """Which samples of the group they are."""


def sub_groups(rows: StepRows, group_size: int | None) -> list[SubGroup]:
    """Disjoint parts of every group of a step.

    The rollouts of a group are exchangeable, so consecutive parts are as good as random ones, and disjoint parts are
    independent given the prompt.

    Args:
        group_size: Rollouts of a part; None: the groups as they are. A remainder is left out.

    Returns:
        The parts, by group; groups smaller than ``group_size`` give none.
    """
    members: dict[str, list[int]] = {}
    for row, group_id in enumerate(rows.group_ids):
        members.setdefault(group_id, []).append(row)
    parts = []
    for group_id, index in members.items():
        size = len(index) if group_size is None else group_size
        for start in range(0, len(index) - size + 1, size):
            parts.append(
                SubGroup(
                    group_id=group_id,
                    index=np.array(index[start : start + size]),
                    samples=tuple(rows.samples[row] for row in index[start : start + size]),
                )
            )
    return parts


def paired_groups(rows: StepRows, advantage: str, sizes: Sequence[int | None]) -> frozenset[str]:
    """Groups with a part that lives at every group size: the same prompts whatever the size.

    Args:
        sizes: Group sizes; None for the groups as they are.

    Returns:
        Their ids.

    Raises:
        InputError: A reward or an advantage that is needed was not logged.
    """
    live = []
    for size in sizes:
        parts = sub_groups(rows, size)
        weights = advantages_of(rows, parts, advantage)
        live.append(frozenset(part.group_id for part, own in zip(parts, weights, strict=True) if np.any(own != 0)))
    return frozenset.intersection(*live)


def advantages_of(rows: StepRows, parts: Sequence[SubGroup], advantage: str) -> list[Array]:
    """The advantages of the rollouts of each part.

    They are computed together: a formulation may look at all groups of the step.

    Returns:
        Advantages, [n][G]; where each token has its own, 1 for a rollout with a gradient and 0 for one without.

    Raises:
        InputError: A reward or an advantage that is needed was not logged.
    """
    if advantage == LOGGED:
        return [_logged(rows)[part.index] for part in parts]
    for part in parts:
        if np.isnan(rows.rewards[part.index]).any():
            raise InputError(f"A rollout of group {part.group_id} at step {rows.step} has no reward.")
    scope = formulation(advantage).scope
    if scope == "functions":
        return _decoupled(rows, parts, advantage)
    if scope not in WEIGHED:
        return list(compute_step_advantages(advantage, [rows.rewards[part.index] for part in parts]))
    by_position: dict[int, Array] = {}
    weights = baseline_weights_of(rows, advantage)
    for positions in by_size(parts):
        index = np.stack([parts[position].index for position in positions])
        by_position |= dict(zip(positions, formulated(advantage, rows.rewards[index], weights[index]), strict=True))
    return [by_position[position] for position in range(len(parts))]


def baseline_weights_of(rows: StepRows, advantage: str) -> Array:
    """What each rollout weighs in the baseline of a formulation.

    Returns:
        Squared norms or lengths where the formulation weighs rewards by them, elsewhere ones, [R].

    Raises:
        InputError: The norms or the lengths that it needs are not known.
    """
    scope = None if advantage == LOGGED else formulation(advantage).scope
    if scope == "gram" and np.isnan(rows.squared_norms).any():
        raise InputError(f"{advantage} depends on the norms of gradients, and advantages alone have none.")
    if scope == "length" and rows.lengths is None:
        raise InputError(f"{advantage} depends on the lengths of completions, which are not known here.")
    if scope == "gram":
        return rows.squared_norms
    return np.ones(len(rows.rewards)) if scope != "length" or rows.lengths is None else rows.lengths


def formulated(advantage: str, rewards: Array, weights: Array) -> Array:
    """The advantages of groups of one size, of whatever their rewards and the weights of rollouts decide.

    Args:
        rewards: [n, G].
        weights: Of each rollout, from :func:`baseline_weights_of`, [n, G].

    Returns:
        Advantages, [n, G].
    """
    if formulation(advantage).scope in WEIGHED:
        return optimal_advantages(rewards, weights)
    return compute_advantages(advantage, rewards)


def _decoupled(rows: StepRows, parts: Sequence[SubGroup], advantage: str) -> list[Array]:
    if rows.functions is None or np.isnan(rows.functions.table).any():
        raise InputError(
            f"{advantage} needs the rewards of each function at step {rows.step}, and not all were logged.",
            hint="Name another --advantage.",
        )
    return list(gdpo([rows.functions.table[part.index] for part in parts], rows.functions.weights))


def by_size(parts: Sequence[SubGroup]) -> list[list[int]]:
    """Places of the parts that have the same number of rollouts, smallest size first."""
    sizes = sorted({len(part.index) for part in parts})
    return [[position for position, part in enumerate(parts) if len(part.index) == size] for size in sizes]


def _logged(rows: StepRows) -> Array:
    if rows.advantages is not None:
        return rows.advantages
    if rows.is_live is None:
        raise InputError(f"No advantages were logged at step {rows.step}.", hint="Name one: --advantage dr_grpo")
    return rows.is_live.astype(np.float64)

"""What degenerate groups cost (rollouts, tokens, the batch that is left), and what each formulation makes of the rest.

Legend: J groups, G group size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.formulation import Formulation
from gradscope.advantages.registry import CONSTANT, FORMULATIONS, compute_advantages, formulation, is_known
from gradscope.diagnostics.degeneracy.group_rewards import GroupRewards
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import GroupTable
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.metrics.uncertainty.studentized import cluster_counts, cluster_sums
from gradscope.results.signal import AdvantageMass, SignalCost

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


Places = NDArray[np.int64]

_FEW_KINDS = 64
"""Kinds of groups up to which they are counted prompt by prompt."""


def measure_advantage_mass(
    chosen: GroupRewards, own: str | None, *, resampling: Resampling
) -> tuple[AdvantageMass, ...]:
    """Positive and negative mass and share of zeros by formulation, and by the run's own where it has a constant."""
    groups = chosen.table
    kinds = _kinds(chosen)
    masses = []
    trained = [formulation(own)] if own is not None and CONSTANT in own and is_known(own) else []
    for entry in (*FORMULATIONS.values(), *trained):
        sums = _sums(entry, kinds)
        if isinstance(sums, str):
            unknown = Estimate.undefined_because(sums, num_units=len(groups))
            masses.append(
                AdvantageMass(advantage=entry.name, positive_mass=unknown, negative_mass=unknown, frac_zero=unknown)
            )
            continue
        positive, negative, zero = bootstrap_statistics(
            lambda totals: totals[..., :3] / totals[..., 3:],
            kinds.of_prompts(sums),
            within=(0.0, [np.inf, np.inf, 1.0]),
            resampling=resampling,
        )
        masses.append(
            AdvantageMass(advantage=entry.name, positive_mass=positive, negative_mass=negative, frac_zero=zero)
        )
    return tuple(masses)


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """Groups with the same rewards, which have the same advantages: of two rewards there are few kinds."""

    by_size: tuple[Array, ...]  # the rewards of each kind, those of one size together, [k, G]
    of_group: Places  # the kind of each group, [J]
    prompt: Places  # the prompt of each group, [J]

    def of_prompts(self, sums: Array) -> Array:
        """Sums over the groups of each prompt from those of each kind, [prompts, 4]."""
        if self._counts is None:
            return cluster_sums(sums[self.of_group], self.prompt)
        return np.asarray(self._counts @ sums, dtype=np.float64)

    @cached_property
    def _counts(self) -> Array | None:
        """How many groups of each kind a prompt has, [prompts, kinds]; None of many kinds."""
        num_kinds = sum(map(len, self.by_size))
        if num_kinds > _FEW_KINDS:
            return None
        return cluster_counts(self.of_group, num_kinds, self.prompt)


def _kinds(chosen: GroupRewards) -> _Kinds:
    by_size, of_group = _of_two_levels(chosen) if len(chosen.levels) <= 2 else _each_its_own(chosen)
    return _Kinds(by_size=tuple(by_size), of_group=of_group, prompt=chosen.table.prompt)


def _of_two_levels(chosen: GroupRewards) -> tuple[list[Array], Places]:
    """Groups of one size with as many of the higher reward are of one kind."""
    levels = chosen.levels
    sizes, high = chosen.table.size, chosen.table.sums(chosen.values == levels[-1])
    base = int(sizes.max()) + 1
    kinds, of_group = np.unique(sizes * base + high, return_inverse=True)
    return [
        np.where(np.arange(size) < (kinds % base)[kinds // base == size, None], levels[-1], levels[0])
        for size in np.unique(kinds // base).tolist()
    ], of_group


def _each_its_own(chosen: GroupRewards) -> tuple[list[Array], Places]:
    by_size, of_group, num_kinds = [], np.zeros(len(chosen.table), dtype=np.int64), 0
    for places, rewards in chosen.table.by_size(chosen.values):
        by_size.append(rewards)
        of_group[places] = num_kinds + np.arange(len(rewards))
        num_kinds += len(rewards)
    return by_size, of_group


def _sums(entry: Formulation, kinds: _Kinds) -> Array | str:
    """Positive mass, negative mass, zeros and rollouts of a group of each kind, [kinds, 4]; or why there are none."""
    sums = []
    for rewards in kinds.by_size:
        reason = entry.why_not(rewards)
        if reason is not None:
            return reason
        advantages = compute_advantages(entry.name, rewards)
        parts = [np.maximum(advantages, 0.0), np.maximum(-advantages, 0.0), advantages == 0.0]
        size = np.full(len(rewards), rewards.shape[1])
        sums.append(np.column_stack([*(part.sum(axis=1) for part in parts), size]))
    return np.concatenate(sums)

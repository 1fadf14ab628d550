"""Shares of degenerate groups with intervals, the i.i.d. prediction beside them, and where the gap comes from.

Legend: J groups, S steps, C cells (a cell is a step and a group size), G group size.

Everything here is a function of sums over groups, so all of it, the decomposition included, is bootstrapped from the
same resamples of prompts. The prediction for groups of unequal size is the mean of p^G + (1-p)^G over the groups' own
sizes. Steps weigh by their number of groups; only so do the two parts of the gap add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.bootstrap import NUM_RESAMPLES, bootstrap_statistics, cluster_sums, or_wilson
from gradscope.metrics.groups import all_equal_unbiased, iid_prediction

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """One row a group."""

    step: NDArray[np.int64]
    """The trainer's step, [J]."""
    prompt: NDArray[np.str_]
    """The prompt, the unit of resampling, [J]."""
    size: NDArray[np.int64]
    """Rollouts of the group, [J]."""
    dead: NDArray[np.bool_]
    """Whether its rewards are all equal, [J]."""
    num_passing: NDArray[np.int64] | None
    """Rollouts that pass, [J]; None where no success threshold is known."""
    level_counts: Sequence[Sequence[int]]
    """How many of its rollouts have each reward, [J] lists."""

    def at_step(self, step: int) -> GroupTable:
        """The groups of one step.

        Args:
            step: The trainer's step.

        Returns:
            A table of those groups only.
        """
        rows = np.flatnonzero(self.step == step).tolist()
        return GroupTable(
            step=self.step[rows],
            prompt=self.prompt[rows],
            size=self.size[rows],
            dead=self.dead[rows],
            num_passing=None if self.num_passing is None else self.num_passing[rows],
            level_counts=[self.level_counts[row] for row in rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DegeneracyEstimates:
    """The numbers of a table of groups; those that need a pass rate are undefined where none is known."""

    frac_reward_zero_std: Estimate
    """Share of groups with zero reward range."""
    frac_all_pass: Estimate
    """Share of groups that all pass, with equal rewards."""
    frac_all_fail: Estimate
    """Share of groups that all fail, with equal rewards."""
    frac_tied: Estimate
    """Share of groups with equal rewards that are neither."""
    pass_rate: Estimate
    """Mean over groups of the share of passing rollouts."""
    iid_prediction: Estimate
    """Mean over groups of p^G + (1-p)^G."""
    jensen_gap: Estimate
    """frac_reward_zero_std - iid_prediction."""
    between_prompts: Estimate
    """The gap within steps."""
    over_time: Estimate
    """The gap that p makes by moving between steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimates:
    """The numbers at one group size that was sampled down to."""

    degeneracy: Estimate
    """Unbiased share of degenerate groups of this size."""
    iid_prediction: Estimate
    """p^G + (1-p)^G."""
    jensen_gap: Estimate
    """degeneracy - iid_prediction."""


NO_THRESHOLD = "the rewards are neither 0/1 nor -1/1 and no success threshold was given"


def estimate_degeneracy(
    table: GroupTable,
    *,
    base_pass_rate: float | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> DegeneracyEstimates:
    """All estimates of a table of groups.

    Args:
        table: The groups, at least one.
        base_pass_rate: The p of the prediction; None: the mean of these groups.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The estimates, intervals by resampling prompts.
    """
    cells = _Cells.of(table)
    dead = table.dead.astype(np.float64)
    if table.num_passing is None:
        units = cluster_sums(np.column_stack([dead, np.ones(len(dead))]), table.prompt)
        (share,) = bootstrap_statistics(_first_over_last, units, num_resamples=num_resamples, seed=seed)
        return _without_pass_rate(or_wilson(share))
    full = table.num_passing == table.size
    columns = [cells.spread(np.ones(len(dead))), cells.spread(dead), cells.spread(table.num_passing / table.size)]
    units = cluster_sums(np.column_stack([*columns, dead * full]), table.prompt)

    def statistic(sums: Array) -> Array:
        return cells.statistics(sums, base_pass_rate)

    zero_std, all_pass, all_fail, pass_rate, *rest = bootstrap_statistics(
        statistic, units, num_resamples=num_resamples, seed=seed
    )
    predicted, gap, between, over_time = rest
    return DegeneracyEstimates(
        frac_reward_zero_std=or_wilson(zero_std),
        frac_all_pass=or_wilson(all_pass),
        frac_all_fail=or_wilson(all_fail),
        frac_tied=Estimate.exact(0.0, num_units=len(units)),
        pass_rate=or_wilson(pass_rate),
        iid_prediction=predicted,
        jensen_gap=gap,
        between_prompts=between,
        over_time=over_time,
    )


def estimate_at_size(
    table: GroupTable,
    group_size: int,
    *,
    base_pass_rate: float | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> SizeEstimates:
    """Degeneracy at a smaller group size than was logged, without bias.

    Args:
        table: The groups, at least one.
        group_size: G, at least 1.
        base_pass_rate: The p of the prediction; None: the mean of these groups.
        num_resamples: Bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The estimates; all undefined where a group has fewer than G rollouts.
    """
    num_short = int(np.sum(table.size < group_size))
    if num_short:
        reason = (
            f"{num_short} of {len(table.size)} groups have fewer than {group_size} rollouts (fewest "
            f"{int(table.size.min())}); forecasts are not available"
        )
        undefined = Estimate.because(reason, num_units=len(table.size))
        return SizeEstimates(degeneracy=undefined, iid_prediction=undefined, jensen_gap=undefined)
    equal = all_equal_unbiased(table.size, _padded(table.level_counts), group_size)
    columns = [equal] if table.num_passing is None else [equal, table.num_passing / table.size]
    units = cluster_sums(np.column_stack([*columns, np.ones(len(equal))]), table.prompt)

    def statistic(sums: Array) -> Array:
        degenerate = sums[..., 0] / sums[..., -1]
        if table.num_passing is None:
            return np.asarray(degenerate[..., None], dtype=np.float64)
        pass_rate = sums[..., 1] / sums[..., -1] if base_pass_rate is None else base_pass_rate
        predicted = np.broadcast_to(iid_prediction(pass_rate, group_size), degenerate.shape)
        return np.stack([degenerate, predicted, degenerate - predicted], axis=-1)

    degenerate, *rest = bootstrap_statistics(statistic, units, num_resamples=num_resamples, seed=seed)
    unknown = Estimate.because(NO_THRESHOLD, num_units=len(units))
    predicted, gap = rest or (unknown, unknown)
    return SizeEstimates(degeneracy=or_wilson(degenerate), iid_prediction=predicted, jensen_gap=gap)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Groups sorted into cells, so that sums over cells hold all that the prediction needs."""

    index: NDArray[np.int64]  # cell of each group, [J]
    size: NDArray[np.int64]  # group size of each cell, [C]
    step: Array  # whether a cell belongs to a step, [C, S]

    @classmethod
    def of(cls, table: GroupTable) -> _Cells:
        keys, index = np.unique(np.column_stack([table.step, table.size]), axis=0, return_inverse=True)
        steps = np.unique(table.step)
        return cls(index.reshape(-1), keys[:, 1], (keys[:, :1] == steps[None, :]).astype(np.float64))

    def spread(self, values: Array) -> Array:
        """Values of groups, each in the column of its cell: [J] -> [J, C]."""
        columns = np.zeros((len(values), len(self.size)))
        columns[np.arange(len(values)), self.index] = values
        return columns

    def statistics(self, sums: Array, base_pass_rate: float | None) -> Array:
        num_cells = len(self.size)
        count, dead, passed = (sums[..., part * num_cells : (part + 1) * num_cells] for part in range(3))
        total = count.sum(axis=-1)
        degenerate, all_pass = dead.sum(axis=-1) / total, sums[..., -1] / total
        pass_rate = passed.sum(axis=-1) / total
        # A step that a resample leaves empty has weight zero; its p is then of no account.
        at_step = (passed @ self.step) / np.maximum(count @ self.step, 1.0)
        pooled = pass_rate[..., None] if base_pass_rate is None else base_pass_rate
        predicted = np.sum(count * iid_prediction(pooled, self.size), axis=-1) / total
        by_step = np.sum(count * iid_prediction(at_step @ self.step.T, self.size), axis=-1) / total
        # From the counts: the difference of two shares is 0.24999999999999997 where the share is 1/4.
        all_fail = (dead.sum(axis=-1) - sums[..., -1]) / total
        columns = [degenerate, all_pass, all_fail, pass_rate]
        parts = [predicted, degenerate - predicted, degenerate - by_step, by_step - predicted]
        return np.stack([*columns, *parts], axis=-1)


def _first_over_last(sums: Array) -> Array:
    return sums[..., :1] / sums[..., -1:]


def _padded(level_counts: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    width = max(len(counts) for counts in level_counts)
    padded = np.zeros((len(level_counts), width), dtype=np.int64)
    for row, counts in enumerate(level_counts):
        padded[row, : len(counts)] = counts
    return padded


def _without_pass_rate(zero_std: Estimate) -> DegeneracyEstimates:
    unknown = Estimate.because(NO_THRESHOLD, num_units=zero_std.num_units)
    return DegeneracyEstimates(
        frac_reward_zero_std=zero_std,
        frac_all_pass=unknown,
        frac_all_fail=unknown,
        frac_tied=zero_std,
        pass_rate=unknown,
        iid_prediction=unknown,
        jensen_gap=unknown,
        between_prompts=unknown,
        over_time=unknown,
    )

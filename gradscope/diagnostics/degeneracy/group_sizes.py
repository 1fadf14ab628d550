"""Degeneracy at other group sizes G: observed, unbiased below the logged size, forecast above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradscope.diagnostics.degeneracy.forecast import forecast_at_size, plan_for_target
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, DegeneracyEstimates, GroupTable, estimate_at_size
from gradscope.metrics.outcomes.forecast import PassRates
from gradscope.metrics.outcomes.jensen_gap import BasePassRate, Draws, estimate_prediction
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.results.degeneracy import GroupSizeDegeneracy
from gradscope.results.signal import TargetDegeneracy


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """The groups of a log, asked about other sizes."""

    table: GroupTable
    """The groups."""
    overall: DegeneracyEstimates
    """Their estimates at the logged size."""
    rates: PassRates | str
    """The distribution of their pass rates, or why there is none."""
    base: BasePassRate
    """The p of the prediction."""
    resampling: Resampling
    """How to resample."""

    @property
    def logged(self) -> int | None:
        """The logged group size; None where groups differ."""
        return int(self.table.size[0]) if np.ptp(self.table.size) == 0 else None

    def rows(self, group_sizes: Sequence[int]) -> tuple[GroupSizeDegeneracy, ...]:
        """One row a size, the logged one first."""
        observed = [self.at(self.logged)] if self.logged is not None else []
        return (*observed, *(self.at(size) for size in sorted(set(group_sizes) - {self.logged})))

    def at(self, group_size: int) -> GroupSizeDegeneracy:
        """One size: what was observed, what smaller draws estimate, or what is forecast."""
        if group_size == self.logged:
            return GroupSizeDegeneracy(
                group_size=group_size,
                degeneracy=self.overall.frac_reward_zero_std,
                iid_prediction=self.overall.iid_prediction,
                jensen_gap=self.overall.jensen_gap,
                method="observed",
            )
        if np.any(self.table.size < group_size):
            return forecast_at_size(self.rates, group_size, self._predicted)
        found = estimate_at_size(
            self.table,
            group_size,
            base_pass_rate=self.base,
            resampling=self.resampling,
        )
        return GroupSizeDegeneracy(
            group_size=group_size,
            degeneracy=found.degeneracy,
            iid_prediction=found.iid_prediction,
            jensen_gap=found.jensen_gap,
            method="unbiased",
        )

    def doubled(self) -> GroupSizeDegeneracy | None:
        """The forecast at twice the logged size; None where groups differ in size."""
        return None if self.logged is None else self.at(2 * self.logged)

    def target(self, share: float, tokens_per_rollout: Estimate) -> TargetDegeneracy:
        """Plans to get to a share of degenerate groups, from the most frequent size where groups differ."""
        sizes, counts = np.unique(self.table.size, return_counts=True)
        return plan_for_target(share, self.at(int(sizes[np.argmax(counts)])), self.at, tokens_per_rollout)

    def _predicted(self, group_size: int) -> Estimate:
        if self.table.num_passing is None:
            return Estimate.undefined_because(NO_THRESHOLD, num_units=len(self.table.size))
        drawn = Draws(
            step=self.table.step,
            prompt=self.table.prompt,
            size=np.full(len(self.table.size), group_size),
            equal=self.table.dead.astype(np.float64),
            rate=self.table.num_passing / self.table.size,
        )
        return estimate_prediction(drawn, self.overall.pass_rate, self.base)


def pass_rate_origin(base_pass_rate: BasePassRate | Literal["window"], num_groups: int) -> str:
    """Which p the i.i.d. prediction used, in words that fit into a sentence."""
    if base_pass_rate is None:
        return f"the mean of this log over {num_groups} groups"
    if isinstance(base_pass_rate, str):
        return f"the mean of each {base_pass_rate}"
    return f"the given base pass rate, {base_pass_rate:g}"

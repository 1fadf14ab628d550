"""Degeneracy at other group sizes: unbiased below the logged one, forecast above it, and what a target share takes.

Legend: n rollouts of a group, c of them passing, G group size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.estimate import Estimate, undefined_record
from gradscope.metrics.outcomes.degeneracy import NO_THRESHOLD, DegeneracyEstimates, GroupTable, estimate_at_size
from gradscope.metrics.outcomes.forecast import MOST_TIMES, PassRates, binomial_chances, fit_pass_rates
from gradscope.metrics.outcomes.jensen_gap import BasePassRate, Draws, estimate_prediction
from gradscope.results.degeneracy import GroupSizeDegeneracy
from gradscope.results.signal import PassRateDistribution, RateBin, TargetDegeneracy, TargetPlan

Array = NDArray[np.float64]

HOPELESS, SOLVED = 0.01, 0.99  # pass rates up to the one and from the other are the ends of the distribution
_MOST_INNER_BINS = 20


def describe_pass_rates(table: GroupTable, rates: PassRates | str) -> PassRateDistribution:
    """Shapes, fit, end masses and histogram of a distribution; undefined where ``rates`` is a reason."""
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=len(table.size))
        return undefined_record(PassRateDistribution, unknown, histogram=())
    distribution, shape, num_prompts = rates, rates.shape, rates.num_prompts

    def mass(inside: Callable[[Array], NDArray[np.bool_]]) -> Estimate:
        value = float(distribution.free.weights[inside(distribution.free.points)].sum())
        low, high = distribution.bounds.interval(inside)
        return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=num_prompts)

    return PassRateDistribution(
        beta_a=Estimate.exact(shape.a, num_units=num_prompts),
        beta_b=Estimate.exact(shape.b, num_units=num_prompts),
        at_zero=Estimate.exact(shape.at_zero, num_units=num_prompts),
        at_one=Estimate.exact(shape.at_one, num_units=num_prompts),
        goodness_of_fit=rates.goodness_of_fit,
        frac_hopeless=mass(lambda p: p <= HOPELESS),
        frac_solved=mass(lambda p: p >= SOLVED),
        histogram=_histogram(table, rates),
    )


def _smallest_size(
    target: float, now: GroupSizeDegeneracy, at_size: Callable[[int], GroupSizeDegeneracy]
) -> GroupSizeDegeneracy | None:
    """The smallest group size that meets the target, by bisection: the share falls with G."""
    low, high = 2, MOST_TIMES * now.group_size

    def ends(row: GroupSizeDegeneracy) -> bool:
        # Forecasts of larger groups are refused before those of smaller ones.
        return row.degeneracy.value is None or row.degeneracy.value <= target

    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ends(at_size(middle)) else (middle + 1, high)
    smallest = at_size(low)
    return smallest if smallest.degeneracy.is_defined and ends(smallest) else None


def _unreached(now: GroupSizeDegeneracy, target: float) -> TargetPlan:
    reason = f"no group size up to {MOST_TIMES} times {now.group_size} is known to bring the share to {target:g}"
    unknown = Estimate.undefined_because(reason, num_units=now.degeneracy.num_units)
    return undefined_record(TargetPlan, unknown, plan="larger groups", group_size=None, method="forecast")


def _resampled(now: GroupSizeDegeneracy, target: float) -> Estimate:
    """Rollouts to sample for each group of a batch that holds no more than the target of degenerate ones."""
    share = now.degeneracy

    def drawn(share: float) -> float:
        return now.group_size * max((1 - target) / (1 - share), 1.0)

    if share.ends[1] >= 1.0:
        return Estimate.exact(drawn(share.value or 0.0), num_units=share.num_units)
    return share.map(drawn)


def _times(number: Estimate, factor: Estimate) -> Estimate:
    """A number times a factor whose error is negligible."""
    times = factor.value
    if number.value is None or times is None:
        return number if number.value is None else factor
    return number.map(lambda value: value * times)


def _histogram(table: GroupTable, rates: PassRates) -> tuple[RateBin, ...]:
    """Shares of groups by c/n: exactly 0, as many bins between as the smallest group has rates, exactly 1."""
    passing = np.zeros(len(table.size), dtype=np.int64) if table.num_passing is None else table.num_passing
    pooled = float(np.mean(passing / table.size))
    bins = min(max(int(table.size.min()) - 1, 1), _MOST_INNER_BINS)
    shares = np.zeros((bins + 2, 3))
    for size in np.unique(table.size).tolist():
        rows = table.size == size
        rate = np.arange(size + 1) / size
        inner = 1 + np.minimum((rate * bins).astype(np.int64), bins - 1)
        bin_index = np.where(rate == 0.0, 0, np.where(rate == 1.0, bins + 1, inner))
        seen = np.bincount(passing[rows], minlength=size + 1) / len(table.size)
        weight = float(rows.mean())
        expected = [weight * rates.shape.chances(size), weight * binomial_chances(size, pooled)]
        np.add.at(shares, bin_index, np.column_stack([seen, *expected]))
    edges = [(0.0, 0.0), *((k / bins, (k + 1) / bins) for k in range(bins)), (1.0, 1.0)]
    return tuple(
        RateBin(low=low, high=high, observed=float(row[0]), beta_binomial=float(row[1]), binomial=float(row[2]))
        for (low, high), row in zip(edges, shares, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """The groups of a log, asked about other sizes."""

    table: GroupTable  # the groups
    overall: DegeneracyEstimates  # their estimates at the logged size
    options: DegeneracyOptions  # how they were made

    @cached_property
    def rates(self) -> PassRates | str:
        """The distribution of their pass rates, or why there is none."""
        if self.table.num_passing is None:
            return NO_THRESHOLD
        full = (self.table.num_passing == 0) | (self.table.num_passing == self.table.size)
        if np.any(full != self.table.dead):
            return "rewards within pass or fail differ, so passes do not tell which groups have equal rewards"
        return fit_pass_rates(self.table.size, self.table.num_passing, self.table.prompt)

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
            rates, prediction = self.rates, self._predicted(group_size)
            dead = Estimate.undefined_because(rates) if isinstance(rates, str) else rates.degeneracy(group_size)
            gap, predicted = dead if prediction.is_defined or not dead.is_defined else prediction, prediction.value
            return GroupSizeDegeneracy(
                group_size=group_size,
                degeneracy=dead,
                iid_prediction=prediction,
                # its interval is that of the forecast, by far the wider of the two
                jensen_gap=gap if predicted is None else gap.map(lambda share: share - predicted),
                method="forecast",
            )
        estimates = estimate_at_size(
            self.table,
            group_size,
            base_pass_rate=self.options.base_pass_rate,
            resampling=self.options.resampling,
        )
        return GroupSizeDegeneracy(
            group_size=group_size,
            degeneracy=estimates.degeneracy,
            iid_prediction=estimates.iid_prediction,
            jensen_gap=estimates.jensen_gap,
            method="unbiased",
        )

    def doubled(self) -> GroupSizeDegeneracy | None:
        """The forecast at twice the logged size; None where groups differ in size."""
        return None if self.logged is None else self.at(2 * self.logged)

    def target(self, target: float, tokens_per_rollout: Estimate) -> TargetDegeneracy:
        """What it takes that at most a share of the groups is degenerate: as logged, by larger groups, by resampling.

        From the most frequent size where groups differ.
        """
        sizes, counts = np.unique(self.table.size, return_counts=True)
        now = self.at(int(sizes[np.argmax(counts)]))
        larger, share, num_units = (
            _smallest_size(target, now, self.at),
            now.degeneracy.value or 0.0,
            now.degeneracy.num_units,
        )
        if share <= target:
            drawn = Estimate.exact(float(now.group_size), num_units=num_units)
        elif share >= 1.0:
            drawn = Estimate.undefined_because("no group is alive, so no number of groups would give one")
        else:
            drawn = _resampled(now, target)
        reached = now.degeneracy if share <= target else Estimate.exact(target, num_units=num_units)

        def plan(
            name: Literal["now", "larger groups", "resampling"],
            row: GroupSizeDegeneracy,
            degeneracy: Estimate,
            drawn: Estimate,
        ) -> TargetPlan:
            return TargetPlan(
                plan=name,
                group_size=row.group_size,
                degeneracy=degeneracy,
                rollouts_per_group=drawn,
                tokens_per_group=_times(drawn, tokens_per_rollout),
                method=row.method,
            )

        plans = (
            plan("now", now, now.degeneracy, Estimate.exact(float(now.group_size))),
            _unreached(now, target)
            if larger is None
            else plan("larger groups", larger, larger.degeneracy, Estimate.exact(float(larger.group_size))),
            plan("resampling", now, reached if drawn.is_defined else drawn, drawn),
        )
        return TargetDegeneracy(target=target, plans=plans)

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
        return estimate_prediction(drawn, self.overall.pass_rate, self.options.base_pass_rate)


def pass_rate_origin(base_pass_rate: BasePassRate | Literal["window"], num_groups: int) -> str:
    """Which p the i.i.d. prediction used, in words that fit into a sentence."""
    if base_pass_rate is None:
        return f"the mean of this log over {num_groups} groups"
    if isinstance(base_pass_rate, str):
        return f"the mean of each {base_pass_rate}"
    return f"the given base pass rate, {base_pass_rate:g}"

"""Shares of degenerate groups, their i.i.d. prediction, and whether a dead prompt is dead again at its next visit.

Legend: J groups, G group size, V pairs of consecutive visits of one prompt.

Prompts are the unit of resampling: groups of one prompt at several steps stay together. Where training makes all
prompts easier, or harder, together, groups after a dead one are of other steps than groups after a live one, and so
differ for prompts that are all alike. The excess of dead groups after a dead one therefore compares returns of one step
with each other, and adds the steps up (Mantel and Haenszel 1959).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate, undefined_record
from gradscope.metrics.outcomes.groups import all_equal_unbiased
from gradscope.metrics.outcomes.jensen_gap import BasePassRate, Draws, estimate_gap
from gradscope.metrics.uncertainty import bootstrap
from gradscope.metrics.uncertainty.bootstrap import cluster_numbers, cluster_sums, deviations_within, unit_sums
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling, student_quantile

_FEW = 16
"""Groups of a table up to which another is likely to be like it, so that both share their estimates: of a million steps
of one group each there are a handful."""
_TABLES = 64
"""Tables whose shares are in memory at once: so few that a run of any length takes no more than its longest steps."""


class GroupTable(Struct, frozen=True, kw_only=True, dict=True):
    """One row a group."""

    step: NDArray[np.int64]  # the trainer's step, [J]
    prompt: NDArray[np.generic]  # the prompt, the unit of resampling: a number or a text, [J]
    size: NDArray[np.int64]  # rollouts of the group, [J]
    dead: NDArray[np.bool_]  # whether its rewards are all equal, [J]
    num_passing: NDArray[np.int64] | None  # rollouts that pass, [J]; None where no success threshold is known
    level_counts: NDArray[np.int64]  # how many of its rollouts have each reward, filled up with zeros, [J, levels]

    @cached_property
    def draws(self) -> Draws:
        """The groups with their pass rates, where a success threshold is known."""
        rate = np.zeros(len(self.size)) if self.num_passing is None else self.num_passing / self.size
        return Draws(step=self.step, prompt=self.prompt, size=self.size, equal=self.dead, rate=rate)

    def take(self, rows: NDArray[np.int64] | slice) -> GroupTable:
        """The groups of these rows."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})


class DegeneracyEstimates(Struct, frozen=True, kw_only=True):
    """The numbers of a table of groups; those that need a pass rate are undefined where none is known."""

    frac_reward_zero_std: Estimate  # share of groups with zero reward range
    frac_all_pass: Estimate  # share of groups that all pass, with equal rewards
    frac_all_fail: Estimate  # share of groups that all fail, with equal rewards
    frac_tied: Estimate  # share of groups with equal rewards that are neither
    pass_rate: Estimate  # mean over groups of the share of passing rollouts
    iid_prediction: Estimate  # mean over groups of p^G + (1-p)^G
    jensen_gap: Estimate  # frac_reward_zero_std - iid_prediction
    relative_gap: Estimate  # jensen_gap / iid_prediction


class SizeEstimates(Struct, frozen=True, kw_only=True):
    """The numbers at one group size that was sampled down to."""

    degeneracy: Estimate  # unbiased share of degenerate groups of this size
    iid_prediction: Estimate  # p^G + (1-p)^G
    jensen_gap: Estimate  # degeneracy - iid_prediction


NO_THRESHOLD = "the rewards are neither 0/1 nor -1/1 and no success threshold was given"


def estimate_degeneracies(
    tables: Sequence[GroupTable], *, base_pass_rate: BasePassRate = None, resampling: Resampling = RESAMPLING
) -> list[DegeneracyEstimates]:
    """All estimates of tables of at least one group each, predicted from ``base_pass_rate``; faster than one by one."""
    keys = [_likeness(table) if len(table.size) <= _FEW else at for at, table in enumerate(tables)]
    different = dict(zip(keys, tables, strict=True))
    representatives, estimates = list(different.values()), list[DegeneracyEstimates]()
    for start in range(0, len(representatives), _TABLES):
        chunk = representatives[start : start + _TABLES]
        units = [unit_sums(share_columns(table), table.draws.unit, len(table.size)) for table in chunk]
        shares = bootstrap.bootstrap_shares(units, resampling=resampling)
        estimates += [_estimates(*pair, base_pass_rate) for pair in zip(chunk, shares, strict=True)]
    by_key = dict(zip(different, estimates, strict=True))
    return [by_key[key] for key in keys]


def _likeness(table: GroupTable) -> tuple[object, ...]:
    """A key that tables with the same estimates share: prompts and steps count by their order alone."""
    ranks = tuple(_ranks(column.tolist()) for column in (table.prompt, table.step))
    passing = None if table.num_passing is None else table.num_passing.tobytes()
    return *ranks, table.size.tobytes(), table.dead.tobytes(), passing


def _ranks(values: list[object]) -> tuple[int, ...]:
    if len(values) == 1:
        return (0,)
    rank = {value: at for at, value in enumerate(sorted(set(values)))}  # type: ignore[type-var]
    return tuple(rank[value] for value in values)


def share_columns(table: GroupTable) -> Iterator[NDArray[Any]]:
    """What the shares of a table are means of, [J] each: dead; where passing is known also all pass, all fail, rate."""
    yield table.dead
    if table.num_passing is not None:
        yield table.dead & (table.num_passing == table.size)
        yield table.dead & (table.num_passing < table.size)
        yield table.draws.rate


def _estimates(table: GroupTable, shares: tuple[Estimate, ...], base_pass_rate: BasePassRate) -> DegeneracyEstimates:
    if table.num_passing is None:
        (dead,) = shares
        unknown = Estimate.undefined_because(NO_THRESHOLD, num_units=dead.num_units)
        return undefined_record(DegeneracyEstimates, unknown, frac_reward_zero_std=dead, frac_tied=dead)
    zero_std, passed, failed, pass_rate = shares
    gap = estimate_gap(table.draws, zero_std, pass_rate, base_pass_rate)
    return DegeneracyEstimates(
        frac_reward_zero_std=zero_std,
        frac_all_pass=passed,
        frac_all_fail=failed,
        frac_tied=Estimate.exact(0.0, num_units=zero_std.num_units),
        pass_rate=pass_rate,
        iid_prediction=gap.prediction,
        jensen_gap=gap.gap,
        relative_gap=gap.relative,
    )


def estimate_at_size(
    table: GroupTable, group_size: int, *, base_pass_rate: BasePassRate = None, resampling: Resampling = RESAMPLING
) -> SizeEstimates:
    """Degeneracy at a size G below the logged one, without bias; undefined where a group has fewer than G rollouts."""
    num_short = int(np.sum(table.size < group_size))
    if num_short:
        reason = (
            f"{num_short} of {len(table.size)} groups have fewer than {group_size} rollouts (fewest "
            f"{int(table.size.min())})"
        )
        undefined = Estimate.undefined_because(reason, num_units=len(table.size))
        return undefined_record(SizeEstimates, undefined)
    equal = all_equal_unbiased(table.size, table.level_counts, group_size)
    if table.num_passing is None:
        (degenerate,) = _shares([equal], table, resampling)
        unknown = Estimate.undefined_because(NO_THRESHOLD, num_units=degenerate.num_units)
        return undefined_record(SizeEstimates, unknown, degeneracy=degenerate)
    rate = table.num_passing / table.size
    degenerate, pass_rate = _shares([equal, rate], table, resampling)
    sizes = np.full(len(equal), group_size)
    draws = Draws(step=table.step, prompt=table.draws.unit, size=sizes, equal=equal, rate=rate)
    gap = estimate_gap(draws, degenerate, pass_rate, base_pass_rate)
    return SizeEstimates(degeneracy=degenerate, iid_prediction=gap.prediction, jensen_gap=gap.gap)


def _shares(columns: Sequence[NDArray[np.float64]], table: GroupTable, resampling: Resampling) -> tuple[Estimate, ...]:
    """Means over groups of numbers in [0, 1], a column [J] each, with intervals that resample prompts."""
    return bootstrap.bootstrap_means(np.column_stack(columns), table.draws.unit, resampling=resampling)


Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_NO_RETURN = "no prompt comes back"
_ALL_ALIKE = "no step has returns after a dead group and after a live one"
_NOTHING = 1e-9


class Persistence(Struct, frozen=True, kw_only=True):
    """Dead groups at the next visit of their prompts."""

    after_dead: Estimate  # share of dead groups whose prompt is dead at its next visit too
    after_live: Estimate  # the same of live groups
    excess: Estimate
    """The first minus the second, among the returns of one step; mean over steps, weighed by how many there are of
    either kind."""
    num_returns: int  # pairs of consecutive visits, V


def dead_persistence(step: ArrayLike, prompt: ArrayLike, dead: ArrayLike, *, resampling: Resampling) -> Persistence:
    """How much likelier a group is dead where its prompt was dead the last time; intervals resample prompts.

    Each group has its step, its prompt and whether its rewards are all equal, [J] each. Two groups of a prompt at one
    step are one visit: the later one counts. Each number is undefined where no return bears on it.

    >>> steps, prompts = [1, 1, 2, 2] * 6, [f"{row // 4}{row % 2}" for row in range(24)]
    >>> persistence = dead_persistence(steps, prompts, [True, False] * 12, resampling=Resampling(num_resamples=50))
    >>> persistence.after_dead.value, persistence.after_live.value, persistence.num_returns
    (1.0, 0.0, 12)
    """
    times, (names, index) = np.asarray(step), np.unique(np.asarray(prompt), return_inverse=True)
    order = np.lexsort((times, index.reshape(-1)))
    owner, when, is_dead = index.reshape(-1)[order], times[order], np.asarray(dead, dtype=bool)[order]
    last_of_visit = np.append((owner[:-1] != owner[1:]) | (when[:-1] != when[1:]), True)
    owner, when, is_dead = owner[last_of_visit], when[last_of_visit], is_dead[last_of_visit]
    comes_back = owner[:-1] == owner[1:]
    before, after = is_dead[:-1][comes_back], is_dead[1:][comes_back]
    who, at = owner[:-1][comes_back], when[1:][comes_back]
    if not len(who):
        none = Estimate.undefined_because(_NO_RETURN, num_units=len(names))
        return undefined_record(Persistence, none, num_returns=0)
    after_dead = _share(after, who, before, "alive", resampling)
    after_live = _share(after, who, ~before, "dead", resampling)
    excess = _excess(before, after, who, at, resampling)
    intervals = (excess.interval, after_dead.interval, after_live.interval)
    if excess.value is not None and None not in intervals:
        # none dead among a few returns resamples to none: the difference is no better known than both shares (Newcombe)
        (first, *ends), (second, *second_ends) = (
            (share.value or 0.0, *share.ends) for share in (after_dead, after_live)
        )
        low = excess.value - float(np.hypot(first - ends[0], second_ends[1] - second))
        high = excess.value + float(np.hypot(ends[1] - first, second - second_ends[0]))
        excess = replace(excess, low=min(excess.ends[0], low), high=max(excess.ends[1], high)).within(-1.0, 1.0)
    return Persistence(after_dead=after_dead, after_live=after_live, excess=excess, num_returns=len(who))


def _share(after: Bools, who: Ints, chosen: Bools, if_none: str, resampling: Resampling) -> Estimate:
    if not chosen.any():
        return Estimate.undefined_because(f"every group before a return is {if_none}", num_units=len(np.unique(who)))
    return bootstrap.bootstrap_mean(after[chosen], who[chosen], resampling=resampling)


def _excess(before: Bools, after: Bools, who: Ints, at: Ints, resampling: Resampling) -> Estimate:
    """By step n1 n0 / n (p1 - p0), summed over sum n1 n0 / n: the slope of ``after`` on ``before`` within steps."""
    was, is_now = (deviations_within(flags, cluster_numbers(at)) for flags in (before, after))
    if not np.any(was):
        return Estimate.undefined_because(_ALL_ALIKE, num_units=len(np.unique(who)))
    units = cluster_sums(np.column_stack([was * is_now, was**2]), who)
    units = units[units[:, 1] > 0]
    floor = _NOTHING * units[:, 1].sum()  # a resample may hold no prompt that returns after both kinds

    def slope(sums: Array) -> Array:
        return np.asarray(sums[..., :1] / np.maximum(sums[..., 1:], floor), dtype=np.float64)

    (excess,) = bootstrap.bootstrap_statistics(slope, units, within=(-1.0, 1.0), resampling=resampling)
    if excess.value is None or excess.interval is None:
        return excess
    # a dozen prompts of which few are ever alive: the studentized quantiles are too near
    half = student_quantile(len(units) - 1) * bootstrap.standard_error(slope, units)
    low, high = min(excess.ends[0], excess.value - half), max(excess.ends[1], excess.value + half)
    return replace(excess, low=low, high=high).within(-1.0, 1.0)

"""Degenerate groups: their shares, i.i.d. prediction and persistence, and whether chance alone makes groups differ.

Legend: J groups, G group size, V pairs of consecutive visits of one prompt; n rollouts of a group, c of them passing, x
= c/n, N and K their sums over a stratum.

Prompts are the unit of resampling: groups of one prompt at several steps stay together. Where training makes all
prompts easier, or harder, together, groups after a dead one are of other steps than groups after a live one, and so
differ for equally hard prompts. The excess of dead groups after a dead one therefore compares returns of one step
with each other, and adds the steps up (Mantel and Haenszel 1959).

The test of whether groups differ more than independent coin flips would asks for the pairs of rollouts of one group
that disagree: prompts of unequal difficulty leave fewer of them.
If every rollout of a step were a flip of the same coin, the outcomes of the step could be dealt to its groups in any
order; so the outcomes are dealt anew, within steps. It is exact given the step totals, whatever p was, and a prompt
that returns at several steps does it no harm: under the hypothesis prompts do not matter. Mean and variance over all
deals are known in closed form (factorial moments of the multivariate hypergeometric distribution), and give z. A normal
p-value is too small where passes or fails are rare, however many groups there are; so the p-value is dealt, but where
Cantelli's inequality, which holds for any distribution of this mean and variance, puts it below what deals can tell.

A step with many groups is dealt column by column: the passes of the r-th rollouts fall on groups at random, and only
how many groups have c passes so far matters, so a deal costs the square of the group size and not the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
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
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling, difference_of, student_quantile

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
    keys = [_likeness(table) if len(table.size) <= _FEW else index for index, table in enumerate(tables)]
    distinct = dict(zip(keys, tables, strict=True))
    representatives, estimates = list(distinct.values()), list[DegeneracyEstimates]()
    for start in range(0, len(representatives), _TABLES):
        chunk = representatives[start : start + _TABLES]
        units = [unit_sums(share_columns(table), table.draws.unit, len(table.size)) for table in chunk]
        shares = bootstrap.bootstrap_shares(units, resampling=resampling)
        estimates += [_estimates(*pair, base_pass_rate) for pair in zip(chunk, shares, strict=True)]
    by_key = dict(zip(distinct, estimates, strict=True))
    return [by_key[key] for key in keys]


def _likeness(table: GroupTable) -> tuple[object, ...]:
    """A key that tables with the same estimates share: prompts and steps count by their order alone."""
    ranks = tuple(_ranks(column.tolist()) for column in (table.prompt, table.step))
    passing = None if table.num_passing is None else table.num_passing.tobytes()
    return *ranks, table.size.tobytes(), table.dead.tobytes(), passing


def _ranks(values: list[object]) -> tuple[int, ...]:
    if len(values) == 1:
        return (0,)
    rank = {value: index for index, value in enumerate(sorted(set(values)))}  # type: ignore[type-var]
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
_NO_CONTRAST = "no step has returns after a dead group and after a live one"
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
    owner, visit_step, is_dead = index.reshape(-1)[order], times[order], np.asarray(dead, dtype=bool)[order]
    last_of_visit = np.append((owner[:-1] != owner[1:]) | (visit_step[:-1] != visit_step[1:]), True)
    owner, visit_step, is_dead = owner[last_of_visit], visit_step[last_of_visit], is_dead[last_of_visit]
    is_return = owner[:-1] == owner[1:]
    before, after = is_dead[:-1][is_return], is_dead[1:][is_return]
    returning, return_steps = owner[:-1][is_return], visit_step[1:][is_return]
    if not len(returning):
        undefined = Estimate.undefined_because(_NO_RETURN, num_units=len(names))
        return undefined_record(Persistence, undefined, num_returns=0)
    after_dead = _share(after, returning, before, "alive", resampling)
    after_live = _share(after, returning, ~before, "dead", resampling)
    excess = _excess(before, after, returning, return_steps, resampling)
    intervals = (excess.interval, after_dead.interval, after_live.interval)
    if excess.value is not None and None not in intervals:
        # none dead among a few returns resamples to none: the difference is no better known than both shares (Newcombe)
        (first, *ends), (second, *second_ends) = ((x.value or 0.0, *x.ends) for x in (after_dead, after_live))
        low = excess.value - float(np.hypot(first - ends[0], second_ends[1] - second))
        high = excess.value + float(np.hypot(ends[1] - first, second - second_ends[0]))
        excess = replace(excess, low=min(excess.ends[0], low), high=max(excess.ends[1], high)).within(-1.0, 1.0)
    return Persistence(after_dead=after_dead, after_live=after_live, excess=excess, num_returns=len(returning))


def _share(after: Bools, owner: Ints, chosen: Bools, kind: str, resampling: Resampling) -> Estimate:
    if not chosen.any():
        return Estimate.undefined_because(f"every group before a return is {kind}", num_units=len(np.unique(owner)))
    return bootstrap.bootstrap_mean(after[chosen], owner[chosen], resampling=resampling)


def _excess(before: Bools, after: Bools, owner: Ints, times: Ints, resampling: Resampling) -> Estimate:
    """By step n1 n0 / n (p1 - p0), summed over sum n1 n0 / n: the slope of ``after`` on ``before`` within steps."""
    dead_before, dead_after = (deviations_within(flags, cluster_numbers(times)) for flags in (before, after))
    if not np.any(dead_before):
        return Estimate.undefined_because(_NO_CONTRAST, num_units=len(np.unique(owner)))
    units = cluster_sums(np.column_stack([dead_before * dead_after, dead_before**2]), owner)
    units = units[units[:, 1] > 0]
    floor = _NOTHING * units[:, 1].sum()  # a resample may hold no prompt that returns after both kinds

    def slope(sums: Array) -> Array:
        return np.asarray(sums[..., :1] / np.maximum(sums[..., 1:], floor), dtype=np.float64)

    (excess,) = bootstrap.bootstrap_statistics(slope, units, bounds=(-1.0, 1.0), resampling=resampling)
    if excess.value is None or excess.interval is None:
        return excess
    # a dozen prompts of which few are ever alive: the studentized quantiles are too near
    half = student_quantile(len(units) - 1) * bootstrap.standard_error(slope, units)
    low, high = min(excess.ends[0], excess.value - half), max(excess.ends[1], excess.value + half)
    return replace(excess, low=low, high=high).within(-1.0, 1.0)


NUM_DEALS = 1999  # with the deal that was logged 2,000, so that p-values come in steps of 0.0005
FEW_DEALS = 199  # in steps of 0.005, for logs whose deals are dear
_RANGE = (-0.25, 0.5)  # of the variance: two equal groups of half passes, and a group of passes with one of fails
_MAX_DRAWS = 10_000_000  # random numbers, a second of one core, beyond which deals are few


class DispersionTest(Struct, frozen=True, kw_only=True):
    """The i.i.d. hypothesis on trial."""

    z: Estimate
    """Standard deviations by which fewer pairs disagree than in the mean of all deals; positive: over-dispersed."""
    p_value: Estimate  # chance of so few disagreeing pairs if all rollouts of a step had one pass rate
    test: str  # how the p-value was computed


def dispersion_test(
    num_samples: ArrayLike, num_passing: ArrayLike, stratum: ArrayLike, *, seed: int = 0
) -> DispersionTest:
    """Test that all rollouts of a stratum have one pass rate, against groups that differ.

    Each group has n, c and its stratum, its step, [J] each. Undefined where no deal could change anything.

    >>> test = dispersion_test([4] * 8, [0, 4] * 4, [1] * 8)
    >>> round(test.z.value, 2), test.p_value.value
    (7.28, 0.0005)
    """
    n, c = np.asarray(num_samples, dtype=np.int64), np.asarray(num_passing, dtype=np.int64)
    strata = [(n[rows], int(c[rows].sum())) for rows in _rows_by(np.asarray(stratum))]
    moments = [_moments(sizes, passing) for sizes, passing in strata]
    mean, variance = (sum(moment[part] for moment in moments) for part in range(2))
    if variance <= 1e-9:
        reason = "no other deal of the outcomes of a step would change how many pairs of a group disagree"
        undefined = Estimate.undefined_because(reason, num_units=len(n))
        return DispersionTest(z=undefined, p_value=undefined, test="none")
    observed = int(np.sum(c * (n - c)))
    z = (mean - observed) / variance**0.5
    p_value, test = 1 / (1 + z**2), "Cantelli's inequality for deals of the outcomes within steps"
    if z < 0 or p_value > 1 / (1 + NUM_DEALS):
        rng, by_column = np.random.default_rng(seed), dict[Any, list[tuple[Ints, int]]]()
        draws = sum(min(len(sizes), _draws_by_column(sizes)) for sizes, _ in strata)
        dealt = np.zeros(NUM_DEALS if draws * NUM_DEALS <= _MAX_DRAWS else FEW_DEALS, dtype=np.int64)
        for sizes, passing in strata:
            if len(sizes) <= _draws_by_column(sizes):
                dealt += _deal_by_group(rng, sizes, passing, len(dealt))
            else:
                by_column.setdefault(tuple(np.unique(sizes).tolist()), []).append((sizes, passing))
        for same_sizes in by_column.values():
            dealt += _deal_by_column(rng, same_sizes, len(dealt))
        p_value = (1 + int(np.sum(dealt <= observed))) / (1 + len(dealt))
        test = f"{len(dealt)} deals of the outcomes within steps"
    return DispersionTest(
        z=Estimate.exact(z, num_units=len(n)), p_value=Estimate.exact(p_value, num_units=len(n)), test=test
    )


def estimate_rate_variance(
    num_samples: ArrayLike, num_passing: ArrayLike, prompts: ArrayLike, *, resampling: Resampling
) -> Estimate:
    """Var(p_x) without bias, from n (at least 2), c and the prompt of each group, [J] each; intervals resample prompts.

    It is the variance of x minus the mean of x (1-x) / (n-1): slightly negative where groups differ less than coin
    flips would; undefined for a single group. Where fewer than 6 prompts have two rollouts of the rarer outcome, the
    interval is that of the mean of their pairs, by Wilson's score.

    >>> estimate_rate_variance([2, 2], [0, 2], ["a", "b"], resampling=Resampling(num_resamples=100)).value
    0.5
    """
    n = np.asarray(num_samples, dtype=np.float64)
    if len(n) < 2:
        return Estimate.undefined_because("one group has no variance between groups", num_units=len(n))
    x = np.asarray(num_passing, dtype=np.float64) / n

    def columns() -> Iterator[Array]:
        yield x
        yield x**2
        yield x * (1 - x) / (n - 1)
        yield np.ones(len(n))

    units = bootstrap.sums_of_columns(columns(), prompts, len(n))

    def variance(sums: Array) -> Array:
        count = sums[..., 3:]
        spread = (sums[..., 1:2] - sums[..., :1] ** 2 / count) / np.maximum(count - 1, 1.0)
        return np.asarray(spread - sums[..., 2:3] / count, dtype=np.float64)

    (estimate,) = bootstrap.bootstrap_statistics(variance, units, bounds=_RANGE, resampling=resampling)
    minority = x if x.mean() <= 0.5 else 1 - x
    pairs = np.maximum(minority * (n * minority - 1) / (n - 1), 0.0)
    if len(np.unique(np.asarray(prompts)[pairs > 0])) >= bootstrap.FEW_INFORMATIVE:
        return estimate
    # Too few prompts pass (or fail) twice for resamples to know how often that happens: Var = E p^2 - (E p)^2.
    square, mean = bootstrap.bootstrap_means(np.column_stack([pairs, minority]), prompts, resampling=resampling)
    low, high = difference_of(mean.map(lambda rate: rate**2), square).ends
    value = estimate.value or 0.0
    return replace(estimate, low=min(low, value), high=max(high, value)).within(*_RANGE)


def estimate_rate_parts(
    step: ArrayLike, prompts: ArrayLike, num_samples: ArrayLike, num_passing: ArrayLike, *, resampling: Resampling
) -> tuple[Estimate, Estimate]:
    """The variance of pass rates within steps where prompts return, split between the prompt and the visit.

    Rollouts of a group may share more than their prompt: a judge, a cache, a failure. What they share at one visit
    makes groups differ as prompts would, but does not return at the next. So the prompt's part is the product of a
    prompt's deviations from the rest of its steps, mean over pairs of its visits; the total is a group's pairs of
    passes minus its pass rate times that of the rest of its step, and the visit's part is the difference. Both without
    bias but for prompts that meet the same prompts at every visit (n / (n - 1), n the groups of a step).

    Each group has its step, its prompt, n (at least 2) and c, [J] each; prompts are resampled. Undefined where no
    prompt is seen at two steps with other prompts.
    """
    n, times, owner = np.asarray(num_samples), bootstrap.cluster_numbers(step), bootstrap.cluster_numbers(prompts)
    rate, num_other, num_prompts = np.asarray(num_passing) / n, np.bincount(times) - 1, int(owner.max(initial=-1)) + 1
    totals = np.bincount(times, weights=rate)

    def units_of(rows: Ints) -> Array:
        """Of all groups of some prompts, what each prompt that returns adds, and its visits, [prompts, 3]."""
        size, x = n[rows], rate[rows]
        offset = x - (totals[times[rows]] - x) / num_other[times[rows]]
        covariance = x * ((size * x - 1) / (size - 1) - x + offset)
        visits, index = np.unique(owner[rows] * len(num_other) + times[rows], return_inverse=True)
        prompt_of, groups = visits // len(num_other), np.bincount(index)
        offset, covariance = (np.bincount(index, weights=values) / groups for values in (offset, covariance))
        num_visits = np.bincount(prompt_of)
        returning = np.flatnonzero(num_visits > 1)
        columns = (offset, offset**2, covariance)
        sums, squares, covariances = (np.bincount(prompt_of, values)[returning] for values in columns)
        return np.column_stack([(sums**2 - squares) / (num_visits[returning] - 1), covariances, num_visits[returning]])

    bounds = np.linspace(0, num_prompts, 2 + min(len(n) >> 18, 14)).astype(np.int64)  # of a long log in small arrays
    masks = ((owner >= low) & (owner < high) & (num_other[times] > 0) for low, high in pairwise(bounds))
    units = np.concatenate([units_of(np.flatnonzero(mask)) for mask in masks])
    if not len(units):
        reason = "no prompt is seen at two steps, so what stays with it is not known"
        undefined = Estimate.undefined_because(reason, num_units=num_prompts)
        return undefined, undefined

    def parts(totals: Array) -> Array:
        prompt, total, count = np.moveaxis(totals, -1, 0)
        return np.stack([prompt / count, (total - prompt) / count], axis=-1)

    prompt, visit = bootstrap.bootstrap_statistics(parts, units, bounds=(-1.0, 1.0), resampling=resampling)
    return prompt, visit


def _rows_by(stratum: NDArray[np.generic]) -> list[Ints]:
    """Rows of each stratum of two or more groups."""
    order = np.argsort(stratum, kind="stable")
    ordered = stratum[order]
    bounds = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]])
    multiple = np.flatnonzero(np.diff(bounds) > 1)  # a million steps of one group are no million arrays
    return [order[start:end] for start, end in zip(bounds[multiple], bounds[multiple + 1], strict=True)]


def _moments(sizes: Ints, passing: int) -> tuple[float, float]:
    """Mean and variance over all deals of the number of disagreeing pairs."""
    total = float(sizes.sum())
    distinct, groups = np.unique(sizes, return_counts=True)

    def joint(passed: int, failed: int, falling_sizes: float) -> float:
        """Factorial moment: ``passed`` of the passing and ``failed`` of the failing land where asked."""
        ways = _falling(float(passing), passed) * _falling(total - passing, failed)
        return falling_sizes * ways / _falling(total, passed + failed)

    second, third, fourth = (
        np.asarray(np.prod(distinct[:, None] - np.arange(order), axis=1), dtype=np.float64) for order in (2, 3, 4)
    )
    pairs, triples, quadruples = (float(groups @ falling) for falling in (second, third, fourth))
    mean = joint(1, 1, pairs)
    same_group = mean + joint(2, 1, triples) + joint(1, 2, triples) + joint(2, 2, quadruples)
    across_groups = joint(2, 2, pairs**2 - float(groups @ second**2))
    return mean, same_group + across_groups - mean**2


def _falling(number: float, order: int) -> float:
    return float(np.prod(number - np.arange(order)))


def _deal_by_group(rng: np.random.Generator, sizes: Ints, passing: int, num_deals: int) -> Ints:
    dealt = rng.multivariate_hypergeometric(sizes, passing, size=num_deals, method="marginals")
    return np.asarray(np.sum(dealt * (sizes - dealt), axis=1), dtype=np.int64)


def _deal_by_column(rng: np.random.Generator, strata: list[tuple[Ints, int]], num_deals: int) -> Ints:
    """The same distribution from the number of groups by size and passes, for strata of the same sizes."""
    distinct = np.unique(strata[0][0])
    counts = np.array([[np.sum(sizes == size) for size in distinct] for sizes, _ in strata])
    shape = (len(strata), num_deals)
    tally = {(int(size), 0): np.broadcast_to(counts[:, [index]], shape) for index, size in enumerate(distinct)}
    left = np.broadcast_to(np.array([[passing] for _, passing in strata]), shape)
    cells = np.array([[int(sizes.sum())] for sizes, _ in strata])
    for column in range(int(distinct.max())):
        width = np.sum(counts[:, distinct > column], axis=1, keepdims=True)
        cells = cells - width
        hits = rng.hypergeometric(width, cells, left)
        left, remaining = left - hits, np.broadcast_to(width, shape)
        for size, passed in sorted(key for key in tally if key[0] > column)[::-1]:
            groups = tally[size, passed]
            remaining = remaining - groups
            moved = rng.hypergeometric(groups, remaining, hits)
            hits = hits - moved
            tally[size, passed] = groups - moved
            tally[size, passed + 1] = tally.get((size, passed + 1), 0) + moved
    disagreeing = sum(groups * passed * (size - passed) for (size, passed), groups in tally.items())
    return np.asarray(np.sum(disagreeing, axis=0), dtype=np.int64)


def _draws_by_column(sizes: Ints) -> int:
    return int(sum(1 + size * (size + 1) // 2 for size in np.unique(sizes)))

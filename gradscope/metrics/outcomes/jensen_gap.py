"""The Jensen gap: the share of degenerate groups beyond that of independent coin flips, and its parts.

Legend: J groups, G group size, n prompts, B blocks of steps, C group sizes, m prompts of a block, K the largest group
size, M policies, Q compositions (how many rollouts of each policy a group has), p_m pass rate of policy m.

The prediction takes its interval from that of p: near p = 1/2 it has no slope, and resamples of it would all lie on one
side. The prediction for groups of unequal size is the mean of p^G + (1-p)^G over the groups' own sizes. Steps weigh by
their number of groups.

No gap is below 0 (Jensen), so value and interval are not either. At few groups the prediction at their mean is too
high, and most of the evidence of a gap is in rare groups that a short log may not have: the interval is corrected for
that bias, and for the skewness of the prompts on the side that it lengthens, and has one more prompt of weight one half
whose groups are as likely to have any number of passes, alike at each visit.
``docs/research/validation_coverage_of_the_gap.csv`` has its coverage.

p^G at the mean of a few groups is biased upward: 8 groups of 4 whose pass rates are spread evenly say 0.05 too much.
The mean over all choices of G *different prompts* of the product of their pass rates is not biased, for rollouts of one
prompt share its difficulty and those of different prompts are independent (a U-statistic, Hoeffding 1948). A step with
too few prompts is pooled with its neighbors.

A group whose rollouts come from policies with pass rates p_m is predicted to be degenerate with probability
prod p_m + prod (1 - p_m) over its rollouts. For groups of one policy each this is that policy's own p^G + (1-p)^G; for
groups with one rollout of each policy it lies below the pooled prediction, because unequal coins agree less often than
equal ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.groups import iid_prediction
from gradscope.metrics.uncertainty import intervals
from gradscope.metrics.uncertainty.bootstrap import (
    bootstrap_statistics,
    cluster_numbers,
    cluster_sums,
    correlation_of_means,
)
from gradscope.metrics.uncertainty.intervals import Resampling

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANY = 4
"""Values, in squares of the order, from which their sums of products come from sums of powers, and each is divided out:
what cancels then is a small part of the sums of choices that the products are set against."""
_CELLS = 1 << 20  # coefficients of one level of a tree that are held at once


class OwnRates(Struct, frozen=True, kw_only=True):
    """Mean predictions over the groups of a log, and the same without each prompt."""

    num_blocks: int  # blocks of steps, B
    by_step: Array  # at each block's own pass rate, [1 + n]: of all groups first
    pooled: Array  # at the pass rate of the log, likewise
    num_groups: Array  # groups that are left, likewise

    @property
    def over_time(self) -> Array:
        """What a pass rate that moves between steps adds to the prediction, [1 + n].

        The factor (J - 1) / J is there because different prompts are of the same step too rarely.
        """
        return (self.by_step - self.pooled) * (self.num_groups - 1) / self.num_groups


def own_rates(step: Counts, prompt: NDArray[np.generic], size: Counts, rate: Array) -> OwnRates | str:
    """The predictions of a log at its own pass rates, from columns [J]; the reason where it has too few prompts.

    >>> groups = np.arange(12)
    >>> rates = own_rates(groups // 6, groups.astype(str), np.full(12, 2), np.repeat([0.0, 1.0], 6))
    >>> rates.num_blocks, float(rates.by_step[0]), round(float(rates.over_time[0]), 4)
    (2, 1.0, 0.5)
    """
    unit = cluster_numbers(prompt)
    sizes, size_index = np.unique(size, return_inverse=True)
    num_prompts, fewest = int(unit.max()) + 1, int(sizes[-1]) + 1
    if num_prompts < fewest:
        return (
            f"groups of {sizes[-1]} rollouts need {fewest} different prompts to tell p^G without bias, the log has "
            f"{num_prompts}"
        )
    order = np.argsort(step, kind="stable")
    # blocks of neighboring steps with at least this many prompts together; the last takes what is left
    is_last_of_step = np.append(np.diff(step[order]) != 0, True)
    closed, prompts = list[int](), set[int]()
    for end, (number, is_last) in enumerate(zip(unit[order].tolist(), is_last_of_step.tolist(), strict=True), start=1):
        prompts.add(number)
        if is_last and len(prompts) >= fewest:
            closed.append(end)
            prompts.clear()
    ends = np.array([*closed[:-1], len(step)])
    block = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    block_of, unit_of, totals, left_out = _predictions(block, unit[order], size_index[order], rate[order], sizes)
    by_step = totals.sum() + np.concatenate([[0.0], np.bincount(unit_of, weights=left_out - totals[block_of])])
    *_, pooled, pooled_without = _predictions(np.zeros_like(unit), unit, size_index, rate, sizes)
    num_groups = len(rate) - np.concatenate([[0], np.bincount(unit)])
    return OwnRates(
        num_blocks=len(ends),
        by_step=by_step / num_groups,
        pooled=np.concatenate([pooled, pooled_without]) / num_groups,
        num_groups=num_groups.astype(np.float64),
    )


def _predictions(
    block: Counts, unit: Counts, size_index: Counts, rate: Array, sizes: Counts
) -> tuple[Counts, Counts, Array, Array]:
    """The block and number of each prompt, [m], and sums of its block's predictions, all [B] and without it [m]."""
    num_units = int(unit.max()) + 1
    pairs, index = np.unique(block * num_units + unit, return_inverse=True)
    block_of, unit_of = np.divmod(pairs, num_units)
    num_members = np.bincount(block_of)
    start = np.cumsum(num_members) - num_members
    counts = np.bincount(index * len(sizes) + size_index, minlength=len(pairs) * len(sizes)).reshape(-1, len(sizes))
    weight, passed = counts.sum(axis=1).astype(np.float64), np.bincount(index, weights=rate)
    # A common factor cancels; this one keeps products of many weights near one.
    scale, order = (sizes[-1] / np.bincount(block_of, weights=weight))[block_of], int(sizes[-1])
    with_all, left_out = np.empty((len(num_members), len(sizes))), np.empty((len(pairs), len(sizes)))
    for blocks, rows in _batches(num_members, start, order):
        choices, passes, fails = (
            _leave_one_out_products(_side_by_side(scale[rows] * values[rows], num_members[blocks]), order)[..., sizes]
            for values in (weight, passed, weight - passed)
        )
        is_member = np.arange(choices.shape[1] - 1) < num_members[blocks, None]
        with_all[blocks] = (passes[:, 0] + fails[:, 0]) / choices[:, 0]
        left_out[rows] = (passes[:, 1:][is_member] + fails[:, 1:][is_member]) / choices[:, 1:][is_member]
    total = np.add.reduceat(counts, start)
    left = total[block_of] - counts
    sums = np.asarray(np.sum(total * with_all, axis=1)), np.asarray(np.sum(left * left_out, axis=1))
    return block_of, unit_of, *sums


def _batches(num_members: Counts, start: Counts, order: int) -> Iterator[tuple[Counts, Counts]]:
    """Blocks of about as many prompts, as many as fit into memory at once, and their rows among all members."""
    depth = np.ceil(np.log2(np.maximum(num_members, 1))).astype(np.int64)
    is_large = num_members >= _MANY * order**2
    for kind, large in np.unique(np.column_stack([depth, is_large]), axis=0).tolist():
        blocks = np.flatnonzero((depth == kind) & (is_large == large))
        at_once = max(1, _CELLS // ((order + 1) << kind))
        for first in range(0, len(blocks), at_once):
            chunk = blocks[first : first + at_once]
            size = num_members[chunk]
            yield chunk, np.repeat(start[chunk] - np.cumsum(size) + size, size) + np.arange(int(size.sum()))


def _side_by_side(values: Array, num_members: Counts) -> Array:
    """The values of each block as a row, filled up with zeros, [B, most members]."""
    rows = np.zeros((len(num_members), int(num_members.max())))
    rows[np.arange(rows.shape[1]) < num_members[:, None]] = values
    return rows


def _leave_one_out_products(values: Array, order: int) -> Array:
    """Sums of products over all choices of k of [B, m] values, k up to K, all and without each, [B, 1 + m, 1 + K]."""
    # The coefficients of prod (1 + z_i t), by a tree of products: upward for all values, downward for all but one.
    # There is no subtraction, so nothing cancels. Of many values the coefficients come from sums of powers (Newton's
    # identities), and each value is divided out, at a fraction of the work.
    num_blocks, width = values.shape
    if width >= _MANY * order**2:
        return _by_division(values, order)
    leaves = np.zeros((num_blocks, 1 << (width - 1).bit_length(), order + 1))
    leaves[..., 0] = 1.0
    leaves[:, :width, 1] = values
    levels = [leaves]
    while levels[-1].shape[1] > 1:
        levels.append(_multiplied(levels[-1][:, 0::2], levels[-1][:, 1::2], 1 << (len(levels) - 1)))
    excluding = np.tile(np.eye(1, order + 1), (num_blocks, 1, 1))
    for height in reversed(range(len(levels) - 1)):
        shape = levels[height].shape
        siblings = levels[height].reshape(num_blocks, -1, 2, order + 1)[:, :, ::-1].reshape(shape)
        excluding = _multiplied(siblings, np.repeat(excluding, 2, axis=1), 1 << height)
    return np.concatenate([levels[-1], excluding[:, :width]], axis=1)


def _multiplied(first: Array, second: Array, degree: int) -> Array:
    """Products of polynomials, the first of some degree, cut at their order, [..., 1 + K]."""
    product = np.zeros(first.shape)
    for power in range(min(degree + 1, first.shape[-1])):
        product[..., power:] += first[..., power : power + 1] * second[..., : first.shape[-1] - power]
    return product


def _by_division(values: Array, order: int) -> Array:
    """The same from sums of powers; each value's factor is divided out of the product of all."""
    num_blocks, width = values.shape
    sums, power = np.empty((order, num_blocks)), np.ones_like(values)
    for index in range(order):
        power = power * values
        sums[index] = power.sum(axis=1)
    terms = np.ones((order + 1, num_blocks, 1 + width))
    for degree in range(1, order + 1):
        signs = (-1.0) ** np.arange(degree)[:, None]
        terms[degree, :, 0] = np.sum(signs * terms[degree - 1 :: -1, :, 0][:degree] * sums[:degree], axis=0) / degree
    for degree in range(1, order + 1):
        terms[degree, :, 1:] = np.maximum(terms[degree, :, :1] - values * terms[degree - 1, :, 1:], 0.0)
    return np.moveaxis(terms, 0, -1)


def estimate_policy_gap(
    equal: ArrayLike, passing: ArrayLike, members: ArrayLike, prompts: ArrayLike, *, resampling: Resampling
) -> tuple[Estimate, Estimate]:
    """The gap at the pooled pass rate in two parts that add up to it: between prompts, and between policies.

    The first is the share of degenerate groups, [J], minus the prediction at the policies' own rates, the second that
    prediction minus the one at the pooled rate. ``passing`` and ``members`` are rollouts of each policy in each group,
    [J, M].

    >>> between_prompts, between_policies = estimate_policy_gap(
    ...     [1, 1], [[2, 0], [0, 0]], [[2, 0], [0, 2]], ["a", "a"], resampling=Resampling(num_resamples=100)
    ... )
    >>> between_prompts.value, between_policies.value
    (0.0, 0.5)
    """
    rollouts = np.asarray(members, dtype=np.int64)
    compositions, index = np.unique(rollouts, axis=0, return_inverse=True)
    has = np.zeros((len(rollouts), len(compositions)))
    has[np.arange(len(rollouts)), index.reshape(-1)] = 1.0
    rate = np.asarray(passing, dtype=np.float64).sum(axis=1) / rollouts.sum(axis=1)
    columns = [np.asarray(equal, dtype=np.float64)[:, None], rate[:, None], has, np.asarray(passing, dtype=np.float64)]
    units = cluster_sums(np.column_stack([*columns, rollouts]), prompts)
    num_policies, num_compositions = rollouts.shape[1], len(compositions)
    sizes = compositions.sum(axis=1)

    def parts(sums: Array) -> Array:
        counts = sums[..., 2 : 2 + num_compositions]
        passed, drawn = np.split(sums[..., 2 + num_compositions :], [num_policies], axis=-1)
        total = counts.sum(axis=-1)
        # A policy that a resample leaves out has weight zero; its rate is then of no account.
        rates = (passed / np.maximum(drawn, 1.0))[..., None, :]
        at_rates = np.prod(rates**compositions, axis=-1) + np.prod((1 - rates) ** compositions, axis=-1)
        pooled = (sums[..., 1] / total)[..., None]
        at_pooled = pooled**sizes + (1 - pooled) ** sizes
        predicted, by_policy = ((counts * chance).sum(axis=-1) / total for chance in (at_pooled, at_rates))
        return np.stack([sums[..., 0] / total - by_policy, by_policy - predicted], axis=-1)

    between_prompts, between_policies = bootstrap_statistics(parts, units, bounds=(-1.0, 1.0), resampling=resampling)
    return between_prompts, between_policies


BasePassRate = float | Literal["step"] | None
"""The p of the prediction: a number, each step's own, or (None) the mean of the groups."""

_ROUNDING = 1e-12  # rounding: numbers closer than this are one
_UNSEEN = 0.5
"""Weight of the prompt that represents those that a short log lacks; a weight of 1 is wider and covers no more."""


class Draws(Struct, frozen=True, kw_only=True, dict=True):
    """Groups as they were logged, or of a smaller size drawn from them."""

    step: NDArray[np.int64]  # the trainer's step, [J]
    prompt: NDArray[np.generic]  # the prompt, the unit of resampling: a number or a text, [J]
    size: NDArray[np.int64]  # group size, [J]
    equal: NDArray[Any]  # chance that a group of this size has equal rewards, [J]; whether it has, at the logged size
    rate: Array  # pass rate, [J]

    @cached_property
    def unit(self) -> NDArray[np.int64]:
        """The number of each group's prompt, [J]."""
        return cluster_numbers(self.prompt)

    @cached_property
    def sizes(self) -> tuple[NDArray[np.int64], Array]:
        """The distinct group sizes, ascending, and the share of the groups that has each."""
        distinct, counts = np.unique(self.size, return_counts=True)
        return distinct, np.asarray(counts / counts.sum(), dtype=np.float64)

    @cached_property
    def own_rates(self) -> OwnRates | str:
        """Predictions at each step's own pass rate, or why there are none."""
        return own_rates(self.step, self.unit, self.size, self.rate)


class Gap(Struct, frozen=True, kw_only=True):
    """A prediction and what the groups show beyond it."""

    prediction: Estimate  # p^G + (1-p)^G
    gap: Estimate  # share of equal groups minus prediction; 0 where that is below, unless the prediction's p is given
    relative: Estimate  # the gap over the prediction


def estimate_gap(draws: Draws, degenerate: Estimate, pass_rate: Estimate, base: BasePassRate) -> Gap:
    """The prediction of independent coin flips, and the gap to it.

    The groups come with their share of equal rewards and their mean pass rate; the own p of a single step is that mean.
    Undefined where each step's own p is asked for and there are too few prompts.
    """
    if base == "step" and np.ptp(draws.step) > 0:
        return _gap_by_step(draws, degenerate)
    prediction = _prediction(draws, pass_rate, base)
    if base is not None and base != "step":
        return Gap(
            prediction=prediction,
            gap=intervals.difference_of(prediction, degenerate),
            relative=_relative(prediction, degenerate, 0.0),
        )
    correlation = 0.0
    if prediction.interval:  # of the share with the prediction, which rises with p only above 1/2
        with_p = correlation_of_means((draws.equal, draws.rate), draws.unit)
        correlation = with_p * float(np.sign((pass_rate.value or 0.0) - 0.5))
    # Around p = 1/2 the prediction errs to one side only, so its error and that of the share add up.
    low, high = pass_rate.ends
    relative = _relative(prediction, degenerate, -1.0 if low <= 0.5 <= high else correlation)
    return Gap(prediction=prediction, gap=_gap_at_mean(draws, degenerate, prediction), relative=_from_zero(relative))


def _gap_at_mean(draws: Draws, degenerate: Estimate, prediction: Estimate) -> Estimate:
    """The gap to the prediction at the groups' own mean, with the interval of its linear part in the groups."""
    # To first order a group adds e - f'(p) x to it, e whether it is equal and x its pass rate. The ends lie t and the
    # third cumulant's part (Johnson 1978, J. American Statistical Association 73) from the unbiased value, the upper
    # one not beyond the largest share minus the least prediction, nor below that minus the largest: the interval of the
    # share allows for prompts at the ends that a log has none of.
    difference = (degenerate.value or 0.0) - (prediction.value or 0.0)
    (sizes, size_shares), rate = draws.sizes, float(draws.rate.mean())
    slope = float(size_shares @ (sizes * (rate ** (sizes - 1) - (1 - rate) ** (sizes - 1))))
    linear = draws.equal - slope * draws.rate
    center, num_units = float(linear.mean()), int(draws.unit.max()) + 1
    scale = num_units / len(linear)
    influence = scale * np.bincount(draws.unit, weights=linear - center)
    any_passes = [equal - slope * rates - center for equal, rates in map(_any_passes, sizes.tolist())]
    unseen = [
        _UNSEEN * float(sum(share * (part**power).mean() for share, part in zip(size_shares, any_passes, strict=True)))
        for power in (2, 3)
    ]
    variance = (float(influence @ influence) + unseen[0]) / (num_units + _UNSEEN - 1)
    if variance <= _ROUNDING:
        return Estimate.exact(max(difference, 0.0), num_units=num_units)
    skewness = (float(np.sum(influence**3)) + unseen[1]) / (num_units + _UNSEEN) / variance**1.5
    error, quantile = (variance / num_units) ** 0.5, intervals.student_quantile(max(num_units - 1, 1))
    shift = skewness * (2 * quantile**2 + 1) / (6 * num_units**0.5)
    order = np.maximum(sizes - 2, 0)  # that of a group of one has no curvature
    curvature = float(size_shares @ (sizes * (sizes - 1) * (rate**order + (1 - rate) ** order)))
    prompt_sums = np.bincount(draws.unit, weights=draws.rate - rate) / len(draws.rate)
    mean_variance = float(prompt_sums @ prompt_sums) * num_units / max(num_units - 1, 1)  # of the pass rate
    unbiased = difference + curvature / 2 * mean_variance
    low, high = (unbiased + side * error * (quantile + max(side * shift, 0.0)) for side in (-1, 1))
    high = min(max(high, degenerate.ends[1] - prediction.ends[1]), degenerate.ends[1] - prediction.ends[0])
    estimate = Estimate(value=difference, low=min(low, difference), high=max(high, difference), num_units=num_units)
    return estimate.within(0.0, 1.0)


@lru_cache
def _any_passes(size: int) -> tuple[Array, Array]:
    """Whether a group with 0 to G passes has equal rewards, and its pass rate, [G + 1] each."""
    rates = np.arange(size + 1) / size
    return np.asarray((rates == 0.0) | (rates == 1.0), dtype=np.float64), rates


def _from_zero(estimate: Estimate) -> Estimate:
    """Of a number that cannot be below 0."""
    return estimate.map(lambda number: max(number, 0.0))


def _gap_by_step(draws: Draws, degenerate: Estimate) -> Gap:
    rates = draws.own_rates
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=degenerate.num_units)
        return Gap(prediction=unknown, gap=unknown, relative=unknown)
    prediction = _jackknifed(rates.by_step, low=0.0)
    if prediction.undefined is not None:
        return Gap(prediction=prediction, gap=prediction, relative=prediction)
    unit = draws.unit
    num_left = len(draws.equal) - np.concatenate([[0.0], np.bincount(unit)])
    sums = draws.equal.sum() - np.concatenate([[0.0], np.bincount(unit, weights=draws.equal)])
    gap = _from_zero(_jackknifed(np.asarray(sums / num_left, dtype=np.float64) - rates.by_step))
    return Gap(prediction=prediction, gap=gap, relative=_from_zero(_relative(prediction, degenerate, 0.0)))


def _relative(prediction: Estimate, degenerate: Estimate, correlation: float) -> Estimate:
    return intervals.ratio_of(prediction, degenerate, correlation=correlation).map(lambda ratio: ratio - 1)


def estimate_prediction(draws: Draws, pass_rate: Estimate, base: BasePassRate) -> Estimate:
    """The prediction alone, for groups of a size that was not drawn; undefined as in :func:`estimate_gap`."""
    if base == "step" and np.ptp(draws.step) > 0:
        return _gap_by_step(draws, pass_rate).prediction
    return _prediction(draws, pass_rate, base)


def _prediction(draws: Draws, pass_rate: Estimate, base: BasePassRate) -> Estimate:
    """At a given p, or at the mean of the groups, which is also that of a single step."""
    predicted = partial(_mean_prediction, draws)
    if isinstance(base, float | int):
        return Estimate.exact(predicted(base), num_units=pass_rate.num_units)
    value = predicted(pass_rate.value or 0.0)
    if pass_rate.interval is None:
        return Estimate.exact(value, num_units=pass_rate.num_units)
    low, high = intervals.image_of_interval(predicted, pass_rate.interval, turns_at=0.5)
    return Estimate(value=value, low=min(low, value), high=max(high, value), num_units=pass_rate.num_units)


def estimate_gap_parts(draws: Draws, gap: Estimate, base: BasePassRate) -> tuple[Estimate, Estimate]:
    """The gap split into prompts that differ within a step, and a pass rate that moves between steps.

    Undefined where the log has too few prompts for two blocks of steps, or for one where the base pass rate is given.
    """
    if not gap.is_defined:
        return gap, gap
    if base == "step" or (base is None and np.ptp(draws.step) == 0):
        return gap, Estimate.exact(0.0, num_units=gap.num_units)
    rates = draws.own_rates
    if not isinstance(rates, str) and base is None and rates.num_blocks < 2:
        rates = (
            f"a split over time needs two blocks of steps with {int(draws.size.max()) + 1} different prompts each, so "
            "that p^G is told without bias, and the log is one block"
        )
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=gap.num_units)
        return unknown, unknown
    over_time = _jackknifed(rates.over_time if base is None else rates.by_step - _mean_prediction(draws, base))
    if not over_time.is_defined:  # parts that add up to the gap are defined together or not at all
        return over_time, over_time
    # What is between prompts is as uncertain as the gap: a short log lacks the same rare groups. Errors may add up.
    between = intervals.difference_of(over_time, gap, correlation=-1.0).within(-1.0, 1.0)
    if base is not None:
        return between, over_time
    # both from 0 on, as the gap is, and still adding up to it
    later = min(max(over_time.value or 0.0, 0.0), gap.value or 0.0)
    return _moved(between, (gap.value or 0.0) - later), _moved(over_time, later)


def _moved(estimate: Estimate, value: float) -> Estimate:
    if estimate.interval is None:
        return replace(estimate, value=value)
    low, high = estimate.ends
    return replace(estimate, value=value, low=min(max(low, 0.0), value), high=max(high, value))


def _mean_prediction(draws: Draws, rate: float) -> float:
    sizes, size_shares = draws.sizes
    return float(size_shares @ iid_prediction(rate, sizes))


def _jackknifed(values: Array, *, low: float = -1.0) -> Estimate:
    """An estimate from a statistic of all prompts and without each, [1 + n]; no interval where no prompt moves it."""
    if np.ptp(values[1:]) <= _ROUNDING:
        return Estimate.exact(float(values[0]), num_units=len(values) - 1)
    return intervals.jackknife(float(values[0]), [values[1:]], low=low, high=1.0)

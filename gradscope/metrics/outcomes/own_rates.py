"""The i.i.d. prediction at the pass rates of steps, of the log, and of several policies, instead of one pooled rate.

p^G at the mean of a few groups is biased upward: 8 groups of 4 whose pass rates are spread evenly say 0.05 too much.
The mean over all choices of G *different prompts* of the product of their pass rates is not biased, for rollouts of one
prompt share its difficulty and those of different prompts are independent (a U-statistic, Hoeffding 1948). A step with
too few prompts is pooled with its neighbors.

A group whose rollouts come from policies with pass rates p_m is predicted to be degenerate with probability
prod p_m + prod (1 - p_m) over its rollouts. For groups of one policy each this is that policy's own p^G + (1-p)^G; for
groups with one rollout of each policy it lies below the pooled prediction, because unequal coins agree less often than
equal ones do.

Legend: J groups, n prompts, B blocks of steps, C group sizes, m prompts of a block, K the largest group size, M
policies, Q compositions (how many rollouts of each policy a group has), p_m pass rate of policy m.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics, cluster_numbers, cluster_sums
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
    # blocks of neighboring steps with at least so many prompts together; the last takes what is left
    is_last_of_step = np.append(np.diff(step[order]) != 0, True)
    closed, prompts = list[int](), set[int]()
    for end, (number, is_last) in enumerate(zip(unit[order].tolist(), is_last_of_step.tolist(), strict=True), start=1):
        prompts.add(number)
        if is_last and len(prompts) >= fewest:
            closed.append(end)
            prompts.clear()
    ends = np.array([*closed[:-1], len(step)])
    block = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    of_block, of_unit, totals, without = _predictions(block, unit[order], size_index[order], rate[order], sizes)
    by_step = totals.sum() + np.concatenate([[0.0], np.bincount(of_unit, weights=without - totals[of_block])])
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
    of_block, of_unit = np.divmod(pairs, num_units)
    num_members = np.bincount(of_block)
    start = np.cumsum(num_members) - num_members
    counts = np.bincount(index * len(sizes) + size_index, minlength=len(pairs) * len(sizes)).reshape(-1, len(sizes))
    weight, passed = counts.sum(axis=1).astype(np.float64), np.bincount(index, weights=rate)
    # A common factor cancels; this one keeps products of many weights near one.
    scale, order = (sizes[-1] / np.bincount(of_block, weights=weight))[of_block], int(sizes[-1])
    with_all, without = np.empty((len(num_members), len(sizes))), np.empty((len(pairs), len(sizes)))
    for blocks, rows in _alike(num_members, start, order):
        choices, passes, fails = (
            _leave_one_out_products(_side_by_side(scale[rows] * values[rows], num_members[blocks]), order)[..., sizes]
            for values in (weight, passed, weight - passed)
        )
        is_member = np.arange(choices.shape[1] - 1) < num_members[blocks, None]
        with_all[blocks] = (passes[:, 0] + fails[:, 0]) / choices[:, 0]
        without[rows] = (passes[:, 1:][is_member] + fails[:, 1:][is_member]) / choices[:, 1:][is_member]
    total = np.add.reduceat(counts, start)
    left = total[of_block] - counts
    sums = np.asarray(np.sum(total * with_all, axis=1)), np.asarray(np.sum(left * without, axis=1))
    return of_block, of_unit, *sums


def _alike(num_members: Counts, start: Counts, order: int) -> Iterator[tuple[Counts, Counts]]:
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
    num_blocks, most = values.shape
    if most >= _MANY * order**2:
        return _by_division(values, order)
    leaves = np.zeros((num_blocks, 1 << (most - 1).bit_length(), order + 1))
    leaves[..., 0] = 1.0
    leaves[:, :most, 1] = values
    levels = [leaves]
    while levels[-1].shape[1] > 1:
        levels.append(_multiplied(levels[-1][:, 0::2], levels[-1][:, 1::2], 1 << (len(levels) - 1)))
    excluding = np.tile(np.eye(1, order + 1), (num_blocks, 1, 1))
    for height in reversed(range(len(levels) - 1)):
        shape = levels[height].shape
        siblings = levels[height].reshape(num_blocks, -1, 2, order + 1)[:, :, ::-1].reshape(shape)
        excluding = _multiplied(siblings, np.repeat(excluding, 2, axis=1), 1 << height)
    return np.concatenate([levels[-1], excluding[:, :most]], axis=1)


def _multiplied(first: Array, second: Array, degree: int) -> Array:
    """Products of polynomials, the first of some degree, cut at their order, [..., 1 + K]."""
    product = np.zeros(first.shape)
    for power in range(min(degree + 1, first.shape[-1])):
        product[..., power:] += first[..., power : power + 1] * second[..., : first.shape[-1] - power]
    return product


def _by_division(values: Array, order: int) -> Array:
    """The same from sums of powers; each value's factor is divided out of the product of all."""
    num_blocks, most = values.shape
    sums, power = np.empty((order, num_blocks)), np.ones_like(values)
    for index in range(order):
        power = power * values
        sums[index] = power.sum(axis=1)
    terms = np.ones((order + 1, num_blocks, 1 + most))
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
        own = (passed / np.maximum(drawn, 1.0))[..., None, :]
        at_own = np.prod(own**compositions, axis=-1) + np.prod((1 - own) ** compositions, axis=-1)
        pooled = (sums[..., 1] / total)[..., None]
        at_pooled = pooled**sizes + (1 - pooled) ** sizes
        predicted, by_policy = ((counts * chance).sum(axis=-1) / total for chance in (at_pooled, at_own))
        return np.stack([sums[..., 0] / total - by_policy, by_policy - predicted], axis=-1)

    between_prompts, between_policies = bootstrap_statistics(parts, units, within=(-1.0, 1.0), resampling=resampling)
    return between_prompts, between_policies

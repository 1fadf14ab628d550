"""The i.i.d. prediction at each step's own pass rate, and at that of the log, without bias, each prompt left out once.

p^G at the mean of a few groups is biased upward: 8 groups of 4 whose pass rates are spread evenly say 0.05 too much.
The mean over all choices of G *different prompts* of the product of their pass rates is not biased, for rollouts of one
prompt share its difficulty and those of different prompts are independent (a U-statistic, Hoeffding 1948). A step with
too few prompts is taken together with its neighbors.

Legend: J groups, n prompts, B blocks of steps, C group sizes, m prompts of a block, K the largest group size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradscope.metrics.uncertainty.clusters import cluster_numbers

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANY = 4
"""Values, in squares of the order, from which their sums of products come from sums of powers, and each is divided out:
what cancels then is a small part of the sums of choices that the products are set against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRates:
    """Mean predictions over the groups of a log, and the same without each prompt."""

    num_blocks: int
    """Blocks of steps, B."""
    by_step: Array
    """At each block's own pass rate, [1 + n]: of the whole log first."""
    pooled: Array
    """At the pass rate of the log, likewise."""
    num_groups: Array
    """Groups that are left, likewise."""

    @property
    def over_time(self) -> Array:
        """What a pass rate that moves between steps adds to the prediction, [1 + n].

        The factor (J - 1) / J is there because different prompts are of the same step too rarely.
        """
        return (self.by_step - self.pooled) * (self.num_groups - 1) / self.num_groups


def own_rates(step: Counts, prompt: NDArray[np.generic], size: Counts, rate: Array) -> OwnRates | str:
    """The predictions of a log at its own pass rates.

    Args:
        step: The step of each group, [J].
        prompt: The prompt of each group, [J].
        size: Its group size, G, [J].
        rate: Its pass rate, [J].

    Returns:
        The predictions; where the log has too few prompts the reason, a sentence without its period.

    Example:
        >>> groups = np.arange(12)
        >>> rates = own_rates(groups // 6, groups.astype(str), np.full(12, 2), np.repeat([0.0, 1.0], 6))
        >>> rates.num_blocks, float(rates.by_step[0]), round(float(rates.over_time[0]), 4)
        (2, 1.0, 0.5)
    """
    unit = cluster_numbers(prompt)
    sizes, place = np.unique(size, return_inverse=True)
    num_prompts, fewest = int(unit.max()) + 1, int(sizes[-1]) + 1
    if num_prompts < fewest:
        return (
            f"groups of {sizes[-1]} rollouts need {fewest} different prompts to tell p^G without bias, the log has "
            f"{num_prompts}"
        )
    sums = np.zeros(1 + num_prompts)
    blocks = list(_blocks(step, unit, fewest))
    for rows in blocks:
        members, predicted = _predictions(unit[rows], place[rows], rate[rows], sizes)
        sums += predicted[0]
        sums[1 + members] += predicted[1:] - predicted[0]
    _, whole = _predictions(unit, place, rate, sizes)
    num_groups = len(rate) - np.concatenate([[0], np.bincount(unit)])
    return OwnRates(
        num_blocks=len(blocks),
        by_step=sums / num_groups,
        pooled=whole / num_groups,
        num_groups=num_groups.astype(np.float64),
    )


def _blocks(step: Counts, unit: Counts, fewest: int) -> Iterator[Counts]:
    """Rows of neighboring steps with at least so many prompts together; the last block takes what is left over."""
    order = np.argsort(step, kind="stable")
    ends = np.flatnonzero(np.diff(step[order], append=step[order[-1]] + 1)) + 1
    closed, seen = [0], set[int]()
    for start, end in zip([0, *ends], ends, strict=False):
        seen.update(unit[order[start:end]].tolist())
        if len(seen) >= fewest:
            closed.append(int(end))
            seen = set()
    closed[-1] = len(order)
    yield from (order[start:end] for start, end in pairwise(closed))


def _predictions(unit: Counts, place: Counts, rate: Array, sizes: Counts) -> tuple[Counts, Array]:
    """The prompts of some groups, [m], and the sum over groups of their prediction, all and without each, [1 + m]."""
    members, index = np.unique(unit, return_inverse=True)
    counts = np.zeros((len(members), len(sizes)))
    np.add.at(counts, (index, place), 1.0)
    weight, passed = counts.sum(axis=1), np.bincount(index, weights=rate)
    # A common factor cancels; this one keeps products of many weights near one.
    scale, order = sizes[-1] / weight.sum(), int(sizes[-1])
    choices, passes, fails = (
        _products_of_others(scale * values, order)[:, sizes] for values in (weight, passed, weight - passed)
    )
    mean_products = (passes + fails) / choices
    left = counts.sum(axis=0) - np.concatenate([np.zeros((1, len(sizes))), counts])
    return members, np.asarray(np.sum(left * mean_products, axis=1), dtype=np.float64)


def _products_of_others(values: Array, order: int) -> Array:
    """Sums over all choices of k different values of their product, k up to an order.

    The coefficients of prod (1 + z_i t), by a tree of products: upward for all values, downward for all but one. There
    is no subtraction, so nothing cancels. Of many values the coefficients come from sums of powers (Newton's
    identities), and each value is divided out, at a fraction of the work.

    Args:
        values: Non-negative, [m].
        order: The largest k, K.

    Returns:
        Of all values, then without each, [1 + m, 1 + K].
    """
    if len(values) >= _MANY * order**2:
        return _by_division(values, order)
    leaves = np.zeros((1 << (len(values) - 1).bit_length(), order + 1))
    leaves[:, 0] = 1.0
    leaves[: len(values), 1] = values
    levels = [leaves]
    while len(levels[-1]) > 1:
        levels.append(_multiplied(levels[-1][0::2], levels[-1][1::2], 1 << (len(levels) - 1)))
    others = np.eye(1, order + 1)
    for height in reversed(range(len(levels) - 1)):
        siblings = levels[height].reshape(-1, 2, order + 1)[:, ::-1].reshape(levels[height].shape)
        others = _multiplied(siblings, np.repeat(others, 2, axis=0), 1 << height)
    return np.concatenate([levels[-1], others[: len(values)]])


def _multiplied(first: Array, second: Array, degree: int) -> Array:
    """Products of polynomials, the first of some degree, cut at their order, [r, 1 + K]."""
    product = np.zeros(first.shape)
    for power in range(min(degree + 1, first.shape[-1])):
        product[:, power:] += first[:, power : power + 1] * second[:, : first.shape[-1] - power]
    return product


def _by_division(values: Array, order: int) -> Array:
    """The same from sums of powers; each value's factor is divided out of the product of all."""
    sums, power = np.empty(order), np.ones(len(values))
    for place in range(order):
        power = power * values
        sums[place] = power.sum()
    whole = np.ones(order + 1)
    for degree in range(1, order + 1):
        signs = (-1.0) ** np.arange(degree)
        whole[degree] = np.sum(signs * whole[degree - 1 :: -1][:degree] * sums[:degree]) / degree
    found = np.ones((order + 1, 1 + len(values)))
    found[:, 0] = whole
    for degree in range(1, order + 1):
        found[degree, 1:] = np.maximum(whole[degree] - values * found[degree - 1, 1:], 0.0)
    return found.T

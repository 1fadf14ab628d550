"""Whether groups differ more than independent coin flips would, and by how much.

Legend: J groups, n rollouts of a group, c of them passing, x = c/n, N and K their sums over a stratum, G group size.

The test asks for the pairs of rollouts of one group that disagree: prompts of unequal difficulty leave fewer of them.
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

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty import bootstrap
from gradscope.metrics.uncertainty.intervals import Resampling, difference_of

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

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
        rng, by_column = np.random.default_rng(seed), dict[Any, list[tuple[Counts, int]]]()
        draws = sum(min(len(sizes), _draws_by_column(sizes)) for sizes, _ in strata)
        dealt = np.zeros(NUM_DEALS if draws * NUM_DEALS <= _MAX_DRAWS else FEW_DEALS, dtype=np.int64)
        for sizes, passing in strata:
            if len(sizes) <= _draws_by_column(sizes):
                dealt += _deal_by_group(rng, sizes, passing, len(dealt))
            else:
                by_column.setdefault(tuple(np.unique(sizes).tolist()), []).append((sizes, passing))
        for alike in by_column.values():
            dealt += _deal_by_column(rng, alike, len(dealt))
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

    (estimate,) = bootstrap.bootstrap_statistics(variance, units, within=_RANGE, resampling=resampling)
    rarer = x if x.mean() <= 0.5 else 1 - x
    pairs = np.maximum(rarer * (n * rarer - 1) / (n - 1), 0.0)
    if len(np.unique(np.asarray(prompts)[pairs > 0])) >= bootstrap.FEW_INFORMATIVE:
        return estimate
    # Too few prompts pass (or fail) twice for resamples to know how often that happens: Var = E p^2 - (E p)^2.
    square, mean = bootstrap.bootstrap_means(np.column_stack([pairs, rarer]), prompts, resampling=resampling)
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
    n, at, who = np.asarray(num_samples), bootstrap.cluster_numbers(step), bootstrap.cluster_numbers(prompts)
    rate, num_other, num_prompts = np.asarray(num_passing) / n, np.bincount(at) - 1, int(who.max(initial=-1)) + 1
    totals = np.bincount(at, weights=rate)

    def units_of(rows: Counts) -> Array:
        """Of all groups of some prompts, what each prompt that returns adds, and its visits, [prompts, 3]."""
        size, x = n[rows], rate[rows]
        off = x - (totals[at[rows]] - x) / num_other[at[rows]]
        covariance = x * ((size * x - 1) / (size - 1) - x + off)
        visits, index = np.unique(who[rows] * len(num_other) + at[rows], return_inverse=True)
        prompt_of, groups = visits // len(num_other), np.bincount(index)
        off, covariance = (np.bincount(index, weights=values) / groups for values in (off, covariance))
        again = np.bincount(prompt_of)
        back = np.flatnonzero(again > 1)
        sums, squares, covariances = (np.bincount(prompt_of, values)[back] for values in (off, off**2, covariance))
        return np.column_stack([(sums**2 - squares) / (again[back] - 1), covariances, again[back]])

    bounds = np.linspace(0, num_prompts, 2 + min(len(n) >> 18, 14)).astype(np.int64)  # of a long log in small arrays
    of_blocks = ((who >= low) & (who < high) & (num_other[at] > 0) for low, high in pairwise(bounds))
    units = np.concatenate([units_of(np.flatnonzero(is_of_block)) for is_of_block in of_blocks])
    if not len(units):
        reason = "no prompt is seen at two steps, so what stays with it is not known"
        undefined = Estimate.undefined_because(reason, num_units=num_prompts)
        return undefined, undefined

    def parts(totals: Array) -> Array:
        stays, both, count = np.moveaxis(totals, -1, 0)
        return np.stack([stays / count, (both - stays) / count], axis=-1)

    stays, of_visit = bootstrap.bootstrap_statistics(parts, units, within=(-1.0, 1.0), resampling=resampling)
    return stays, of_visit


def _rows_by(stratum: NDArray[np.generic]) -> list[Counts]:
    """Rows of each stratum of two or more groups."""
    order = np.argsort(stratum, kind="stable")
    ordered = stratum[order]
    bounds = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]])
    several = np.flatnonzero(np.diff(bounds) > 1)  # a million steps of one group are no million arrays
    return [order[start:end] for start, end in zip(bounds[several], bounds[several + 1], strict=True)]


def _moments(sizes: Counts, passing: int) -> tuple[float, float]:
    """Mean and variance over all deals of the number of disagreeing pairs."""
    total = float(sizes.sum())
    distinct, groups = np.unique(sizes, return_counts=True)

    def joint(passed: int, failed: int, falling_sizes: float) -> float:
        """Factorial moment: ``passed`` of the passing and ``failed`` of the failing land where asked."""
        of_both = _falling(float(passing), passed) * _falling(total - passing, failed)
        return falling_sizes * of_both / _falling(total, passed + failed)

    of_two, of_three, of_four = (
        np.asarray(np.prod(distinct[:, None] - np.arange(order), axis=1), dtype=np.float64) for order in (2, 3, 4)
    )
    pairs, triples, fours = (float(groups @ falling) for falling in (of_two, of_three, of_four))
    mean = joint(1, 1, pairs)
    same = mean + joint(2, 1, triples) + joint(1, 2, triples) + joint(2, 2, fours)
    apart = joint(2, 2, pairs**2 - float(groups @ of_two**2))
    return mean, same + apart - mean**2


def _falling(number: float, order: int) -> float:
    return float(np.prod(number - np.arange(order)))


def _deal_by_group(rng: np.random.Generator, sizes: Counts, passing: int, num_deals: int) -> Counts:
    dealt = rng.multivariate_hypergeometric(sizes, passing, size=num_deals, method="marginals")
    return np.asarray(np.sum(dealt * (sizes - dealt), axis=1), dtype=np.int64)


def _deal_by_column(rng: np.random.Generator, strata: list[tuple[Counts, int]], num_deals: int) -> Counts:
    """The same distribution from how many groups of each size have how many passes, for strata of the same sizes."""
    distinct = np.unique(strata[0][0])
    counts = np.array([[np.sum(sizes == size) for size in distinct] for sizes, _ in strata])
    shape = (len(strata), num_deals)
    tally = {(int(size), 0): np.broadcast_to(counts[:, [at]], shape) for at, size in enumerate(distinct)}
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
            hit = rng.hypergeometric(groups, remaining, hits)
            hits = hits - hit
            tally[size, passed] = groups - hit
            tally[size, passed + 1] = tally.get((size, passed + 1), 0) + hit
    disagreeing = sum(groups * passed * (size - passed) for (size, passed), groups in tally.items())
    return np.asarray(np.sum(disagreeing, axis=0), dtype=np.int64)


def _draws_by_column(sizes: Counts) -> int:
    return int(sum(1 + size * (size + 1) // 2 for size in np.unique(sizes)))

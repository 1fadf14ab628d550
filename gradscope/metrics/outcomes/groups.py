"""Degenerate groups: which groups give no gradient, how many coin flips would, and the difference.

Legend: G rollouts of a group, n samples of a prompt, c of them passing or otherwise of the kind asked for, k drawn
without replacement, p pass rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def frac_draws_all(num_samples: ArrayLike, num_marked: ArrayLike, k: int) -> Array:
    """C(c, k) / C(n, k), [...]: the share of all k-element draws that take only marked samples, c of n.

    Computed as the product of (c - i) / (n - i), whose factors all lie in [0, 1]: no factorial overflows and nothing
    cancels, so n in the thousands keeps 13 digits.

    Raises:
        ValueError: A count is impossible or k exceeds a prompt's samples.

    >>> frac_draws_all([4, 4], [3, 4], 2).tolist()
    [0.5, 1.0]
    """
    n, c = np.broadcast_arrays(np.asarray(num_samples), np.asarray(num_marked))
    if np.any(c < 0) or np.any(c > n):
        raise ValueError("the number of marked samples lies between 0 and the number of samples")
    if k < 0:
        raise ValueError(f"the number of draws is at least 0, got {k}")
    if np.any(n < k):
        raise ValueError(f"k = {k} draws need at least {k} samples, the fewest are {int(n.min())}")
    share = np.ones(n.shape)
    for drawn in range(k):
        share *= np.maximum(c - drawn, 0) / (n - drawn)
    return share


GroupKind = Literal["mixed", "all_pass", "all_fail", "tied"]

EQUAL_REWARDS = 1e-8
"""Rewards of a group within this range are equal: the absolute tolerance of numpy's ``isclose`` to zero, which TRL
applies to the group's std."""
_DECIMALS = 8  # of such rewards
FAINT_REWARDS = 1e-4
"""A range below which what trainers add to the standard deviation, from 1e-4 (TRL) to 1e-9 (OpenRLHF), makes of a
group's advantage all or nothing."""
REACHES_THRESHOLD = 1e-6
"""A reward this far below the success threshold still passes: 0.7 stored in float32 is 0.69999999."""
BINARY_LEVELS = (frozenset({0.0, 1.0}), frozenset({-1.0, 1.0}))
"""Rewards with these values need no threshold: 1 passes. Any other pair (0 and 0.1, say) may both be failures."""


def binary_threshold(rewards: ArrayLike) -> float | None:
    """The success threshold, 1.0, of rewards that need none given, 0/1 or -1/1; None for other rewards, or none.

    >>> binary_threshold([0.0, 1.0, 1.0 - 1e-9]), binary_threshold([0.0, 0.1])
    (1.0, None)
    """
    levels = set(np.round(np.clip(np.unique(np.asarray(rewards, dtype=np.float64)), -2, 2), _DECIMALS).tolist())
    return 1.0 if levels and any(levels <= allowed for allowed in BINARY_LEVELS) else None


def passes(rewards: ArrayLike, success_threshold: float) -> NDArray[np.bool_]:
    """Which rollouts pass, [...]: those whose reward reaches the threshold.

    >>> passes([0.5, 1.0], 1.0).tolist()
    [False, True]
    """
    return np.asarray(np.asarray(rewards, dtype=np.float64) >= success_threshold - REACHES_THRESHOLD, dtype=np.bool_)


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether the finite rewards of a group, [G], are equal, so that it gives a group-mean baseline no gradient.

    >>> all_equal([0.5, 0.5 + 1e-9]), all_equal([0.5, 0.6])
    (True, False)
    """
    return max(rewards) - min(rewards) <= EQUAL_REWARDS


def classify_group(rewards: ArrayLike, success_threshold: float | None) -> GroupKind:
    """What kind of group this is, by the range of its rewards, [G].

    ``mixed`` where they differ; else ``all_pass`` or ``all_fail``, or ``tied`` without a threshold.

    Raises:
        ValueError: There are no rewards, or one is not finite.

    >>> classify_group([1.0, 1.0], 1.0), classify_group([0.3, 0.3], None), classify_group([0.0, 1.0], 1.0)
    ('all_pass', 'tied', 'mixed')
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values)):
        raise ValueError("a group has at least one reward, and all of them are finite")
    if not all_equal(values.tolist()):
        return "mixed"
    if success_threshold is None:
        return "tied"
    return "all_pass" if passes(values, success_threshold).all() else "all_fail"


def all_equal_unbiased(num_samples: ArrayLike, level_counts: ArrayLike, group_size: int) -> Array:
    """Chance that G of a prompt's n samples have the same reward: sum over reward levels of C(c_l, G) / C(n, G).

    For two levels, c passing and n - c failing, it is [C(c,G) + C(n-c,G)] / C(n,G). The plug-in (c/n)^G + (1-c/n)^G is
    biased upward when n is close to G. From n, [...], and how many samples have each reward, [..., levels].

    Raises:
        ValueError: The group size is below 1, or the counts do not add up to n.

    >>> all_equal_unbiased([4], [[2, 1, 1]], 2).round(4).tolist()
    [0.1667]
    """
    n, counts = np.asarray(num_samples), np.asarray(level_counts)
    if group_size < 1:
        raise ValueError(f"a group has at least 1 rollout, got {group_size}")
    if np.any(counts.sum(axis=-1) != n):
        raise ValueError("the counts of the reward levels add up to the number of samples")
    if group_size == 1:
        return np.ones(n.shape)
    return np.asarray(frac_draws_all(n[..., None], counts, group_size).sum(axis=-1), dtype=np.float64)


def level_counts(rewards: ArrayLike) -> NDArray[np.int64]:
    """How many rewards of groups of one size, [..., G], are equal, level by level: [..., levels].

    Ascending by reward, filled up with zeros; rewards closer than the tolerance to their neighbor share a level.

    >>> level_counts([[0.5, 0.0, 0.5], [1.0, 1.0, 1.0]]).tolist()
    [[1, 2], [3, 0]]
    """
    ordered = np.sort(np.asarray(rewards, dtype=np.float64), axis=-1)
    level = np.cumsum(np.diff(ordered, axis=-1, prepend=ordered[..., :1]) > EQUAL_REWARDS, axis=-1)
    num_levels, groups = int(level.max(initial=0)) + 1, ordered.shape[:-1]
    by_group = level.reshape(-1, ordered.shape[-1])
    cell = by_group + num_levels * np.arange(len(by_group))[:, None]
    counts = np.bincount(cell.ravel(), minlength=num_levels * len(by_group))
    return np.asarray(counts.reshape(*groups, num_levels), dtype=np.int64)


def min_dead_groups(size: NDArray[np.int64], num_passing: NDArray[np.int64]) -> float:
    """How many groups of independent rollouts pass or fail throughout, at least; 0 where some of a log's do, [J].

    Of groups of G the number n_c with c passes is J C(G, c) E[p^c (1-p)^(G-c)] on average, so n_0 n_2 >= n_1^2 (G - 1)
    / (2 G) whatever the pass rates (Cauchy and Schwarz); likewise from the other end. Two standard errors off, so that
    few groups say nothing, nor do those of one count: so are ranks, or a reward of one sample.

    >>> round(min_dead_groups(np.full(300, 4), np.repeat([1, 2, 3], [150, 50, 100])), 1)
    123.7
    """
    if np.any((num_passing == 0) | (num_passing == size)) or len(np.unique(num_passing)) < 2:
        return 0.0
    fewest = 0.0
    for group_size in np.unique(size[size > 2]).tolist():
        counts = np.bincount(num_passing[size == group_size], minlength=group_size + 1)
        for count, neighbor in (counts[[1, 2]], counts[[-2, -3]]):
            ends = max(count - 2 * count**0.5, 0.0) ** 2 / (neighbor + 2 * neighbor**0.5 + 3)
            fewest += ends * (group_size - 1) / (2 * group_size)
    return float(fewest)


def faint_groups(spread: Array) -> NDArray[np.bool_]:
    """Groups whose rewards differ by less than 1 % of what those of others do, from ranges of rewards, [J].

    None where they are fewer than a tenth, or where ranges between (1 % to 20 %) are not rare, as of graded rewards.
    All that are live where hardly a range reaches 1e-4.

    >>> faint_groups(np.array([0.0, 1e-6, 2e-6, 1.0, 1.0])).tolist()
    [False, True, True, False, False]
    """
    live = spread > EQUAL_REWARDS
    top = np.quantile(spread[live], 0.95) if live.any() else 0.0
    if top < FAINT_REWARDS:
        return np.asarray(live)
    faint = live & (spread < 0.01 * top)
    between = live & (spread < 0.2 * top) & ~faint
    return np.asarray(faint & (faint.sum() >= max(0.1 * len(spread), 4 * between.sum())), dtype=np.bool_)


def iid_prediction(pass_rate: ArrayLike, group_size: ArrayLike) -> Array:
    """Degeneracy of a group of independent coin flips that all have the same p: p^G + (1-p)^G.

    >>> float(iid_prediction(0.5, 4))
    0.125
    """
    p, size = np.asarray(pass_rate, dtype=np.float64), np.asarray(group_size, dtype=np.float64)
    return np.asarray(p**size + (1 - p) ** size, dtype=np.float64)


def multiples_of_usual(sizes: NDArray[Any]) -> tuple[NDArray[np.bool_], float]:
    """Which sizes [N] exceed that of most, if all of these are multiples of it, else none; and that size."""
    levels, counts = np.unique(sizes, return_counts=True)
    typical = levels[counts.argmax()] if len(levels) else 1
    are_multiples = counts.max(initial=0) > len(sizes) / 2 and not np.any(sizes[sizes > typical] % typical)
    return (sizes > typical) & are_multiples, float(typical)

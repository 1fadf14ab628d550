"""How much of a step's gradient is (near) zero: five definitions on the norms of its rows.

A step can be sparse because whole groups are dead (``zero_groups``, ``zero_rows``), because few rollouts outweigh the
rest (``small_rows``), or in between (``hoyer``, ``gini``). The definitions disagree by design; each keeps its name.
Legend: R rollouts, x their gradient row norms [R]. Shares are undefined without rows, or where every row is zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array

SMALL = 0.01  # a row below this share of the largest row norm is small

_ALL_ZERO = "every row is zero"


def row_sparsity(norms: ArrayLike) -> dict[str, Estimate]:
    """Four definitions at once, under the names of ``StepGeometry.sparsity``, of the norms x.

    >>> {name: round(estimate.value, 3) for name, estimate in row_sparsity([0.0, 0.0, 3.0, 4.0]).items()}
    {'zero_rows': 0.5, 'small_rows': 0.5, 'hoyer': 0.6, 'gini': 0.536}
    """
    return {"zero_rows": zero_rows(norms), "small_rows": small_rows(norms), "hoyer": hoyer(norms), "gini": gini(norms)}


def zero_rows(norms: ArrayLike) -> Estimate:
    """Share of rows that are exactly zero: rollouts with zero advantage, or without a token in the loss.

    >>> zero_rows([0.0, 1.0]).value
    0.5
    """
    values = _checked(norms)
    if not len(values):
        return Estimate.undefined_because("there are no rows")
    return Estimate.exact(float(np.mean(values == 0.0)), num_units=len(values))


def small_rows(norms: ArrayLike) -> Estimate:
    """Share of rows whose norm is below 1 % of the largest, zero rows among them; undefined where every row is zero.

    >>> small_rows([0.0, 0.001, 1.0, 2.0]).value
    0.5
    """
    values = _checked(norms)
    largest = float(np.max(values, initial=0.0))
    if largest == 0.0:
        return Estimate.undefined_because(_ALL_ZERO, num_units=len(values))
    return Estimate.exact(float(np.mean(values < SMALL * largest)), num_units=len(values))


def zero_groups(norms: ArrayLike, groups: ArrayLike) -> Estimate:
    """Share of groups whose rows are all exactly zero, dead groups, from x and the group of each row, [R] each.

    >>> zero_groups([0.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"]).value
    0.5
    """
    values = _checked(norms)
    index = np.unique(np.asarray(groups), return_inverse=True)[1]
    if not len(values):
        return Estimate.undefined_because("there are no rows")
    live = np.bincount(index, weights=values != 0.0)
    return Estimate.exact(float(np.mean(live == 0)), num_units=len(live))


def hoyer(norms: ArrayLike) -> Estimate:
    """(sqrt(R) - sum x / sqrt(sum x^2)) / (sqrt(R) - 1): 0 for equal norms, 1 for a single row (Hoyer 2004).

    Undefined where every row is zero or there is one row.

    >>> hoyer([0.0, 0.0, 5.0, 0.0]).value
    1.0
    """
    values = _checked(norms)
    if len(values) < 2:
        return Estimate.undefined_because("one row has nothing to be compared with", num_units=len(values))
    largest = float(np.max(values))
    if largest == 0.0:
        return Estimate.undefined_because(_ALL_ZERO, num_units=len(values))
    scaled = values / largest
    root = np.sqrt(len(values))
    share = (root - np.sum(scaled) / np.sqrt(np.sum(scaled**2))) / (root - 1)
    return Estimate.exact(float(np.clip(share, 0.0, 1.0)), num_units=len(values))


def gini(norms: ArrayLike) -> Estimate:
    """Mean absolute difference of two norms over twice their mean: 0 for equal norms, (R - 1)/R for a single row.

    >>> gini([0.0, 0.0, 5.0, 0.0]).value
    0.75
    """
    values = np.sort(_checked(norms))
    largest = float(np.max(values, initial=0.0))
    if largest == 0.0:
        return Estimate.undefined_because(_ALL_ZERO, num_units=len(values))
    scaled = values / largest
    num_rows = len(scaled)
    position = 2 * np.arange(1, num_rows + 1) - num_rows - 1
    share = float(np.sum(position * scaled) / (num_rows * np.sum(scaled)))
    return Estimate.exact(max(share, 0.0), num_units=num_rows)


def _checked(norms: ArrayLike) -> Array:
    values = np.asarray(norms, dtype=np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError("row norms are finite, non-negative numbers in one dimension")
    return values

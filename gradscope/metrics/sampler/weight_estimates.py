"""What importance weights leave of a sample: its effective share, the variance of the weights, and what is masked.

Legend: M units, which are tokens or whole sequences, J groups. Intervals leave each group out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import POSITIVE, SHARE, jackknifed_on, left_out_sums, ratio_over_groups
from gradscope.metrics.gram.spectrum import Array

LARGEST = 1e30
"""Weights from here on would leave single precision in a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEstimates:
    """Some weights f of M units."""

    kept: Estimate
    """Share of the units with f > 0."""
    ess: Estimate
    """(sum of f)^2 / (M sum of f^2)."""
    chi2: Estimate
    """Mean of f^2 - 1."""


def weight_estimates(weights: ArrayLike, groups: ArrayLike) -> WeightEstimates:
    """The three numbers of some weights, each with its interval over groups.

    Args:
        weights: Finite and not negative, one a unit, [M].
        groups: The group of each unit, from 0 to J - 1, [M].

    Returns:
        The estimates; the effective share is undefined where every weight is zero.

    Example:
        >>> found = weight_estimates([1.0, 3.0, 0.0, 0.0], [0, 0, 1, 1])
        >>> found.kept.value, found.ess.value, found.chi2.value
        (0.5, 0.4, 1.5)
    """
    f, index = np.asarray(weights, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    number, positive, total, square = (
        np.bincount(index, values) for values in (np.ones(len(f)), (f > 0).astype(np.float64), f, f**2)
    )
    return WeightEstimates(
        kept=ratio_over_groups(positive, number),
        ess=_effective_share(total, square, number),
        chi2=ratio_over_groups(square, number, POSITIVE).map(lambda moment: moment - 1.0),
    )


def usable(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Those of some weights that a gradient can be multiplied by.

    Returns:
        Name -> weights, of those that are all below :data:`LARGEST`.

    Example:
        >>> list(usable({"small": np.array([1.0, 2.0]), "large": np.array([1.0, np.inf])}))
        ['small']
    """
    return {name: values for name, values in weights.items() if np.all(values < LARGEST)}


def _effective_share(total: ArrayLike, square: ArrayLike, number: ArrayLike) -> Estimate:
    sums, squares, numbers = (left_out_sums(values) for values in (total, square, number))
    below = numbers * squares
    if below[0] <= 0:
        return Estimate.undefined_because("every weight is zero", num_units=len(below) - 1)
    with np.errstate(invalid="ignore"):  # a group without which every weight is zero leaves no interval
        return jackknifed_on(np.minimum(sums**2 / below, 1.0), SHARE)

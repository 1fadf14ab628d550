"""Weighted sums of the same gradients beside each other: shares, cosines and sizes, with intervals over groups.

A step's tokens under several weights make several sums. Their inner products by group say how the sums lie to each
other, and what is left of that without any one group, which gives the intervals: they are for other prompts.

Legend: V sums, J groups, K their Gram matrix by group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import MIN_GROUPS, jackknifed
from gradscope.metrics.gram.spectrum import Array

_LEAST = 1e-200
"""Norms and squares below are zero: their ratios would leave floating point."""
NO_LENGTH = "one of the two sums is zero, and has no direction"


def products_without(gram: ArrayLike) -> Array:
    """Inner products of the sums over all groups, then without each group.

    Args:
        gram: K, [V, J, V, J].

    Returns:
        The products, [1 + J, V, V].

    Example:
        >>> products_without(np.ones((1, 2, 1, 2))).ravel().tolist()
        [4.0, 1.0, 1.0]
    """
    products = np.asarray(gram, dtype=np.float64)
    whole, with_group = products.sum(axis=(1, 3)), products.sum(axis=3)
    own = np.einsum("vjwj->jvw", products)
    across = np.moveaxis(with_group, 1, 0)
    return np.concatenate([whole[None], whole - across - across.swapaxes(1, 2) + own])


def sum_cosine(products: Array, first: ArrayLike, second: ArrayLike) -> Estimate:
    """Cosine of two combinations of the sums.

    Args:
        products: As :func:`products_without` returns them, [1 + J, V, V].
        first: How often each sum is in the one, [V].
        second: In the other, [V].

    Returns:
        A number from -1 to 1; undefined where either is zero, without an interval for fewer than three groups or where
        one group alone has either.

    Example:
        >>> by_group = np.einsum("vd,wd,jk->vjwk", [[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]], np.ones((3, 3)))
        >>> round(sum_cosine(products_without(by_group), [1, 0], [0, 1]).value, 4)
        0.7071
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    squares = np.stack([_form(products, a, a), _form(products, b, b)])
    return _jackknifed(_form(products, a, b), np.sqrt(np.prod(np.clip(squares, 0.0, None), axis=0)), (-1.0, 1.0))


def norm_ratio(products: Array, first: ArrayLike, second: ArrayLike) -> Estimate:
    """Norm of one combination of the sums over that of another.

    Args:
        products: As :func:`products_without` returns them, [1 + J, V, V].
        first: How often each sum is in the one, [V].
        second: In the other, [V].

    Returns:
        A number from 0 on; undefined where the other is zero.

    Example:
        >>> by_group = np.einsum("v,w,jk->vjwk", [1.0, 2.0], [1.0, 2.0], np.ones((3, 3)))
        >>> norm_ratio(products_without(by_group), [1, 0], [0, 1]).value
        0.5
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    squares = [np.sqrt(np.clip(_form(products, each, each), 0.0, None)) for each in (a, b)]
    return _jackknifed(squares[0], squares[1], (0.0, np.inf))


def sum_share(products: Array, part: ArrayLike, whole: ArrayLike) -> Estimate:
    """A combination's part of another along that other's own direction: a . b / |b|^2.

    Args:
        products: As :func:`products_without` returns them, [1 + J, V, V].
        part: How often each sum is in the part, [V].
        whole: In the whole, [V].

    Returns:
        A share; those of parts that add up to the whole add up to 1, and one that pulls against it is negative.

    Example:
        >>> by_group = np.einsum("vd,wd,jk->vjwk", np.diag([3.0, 1.0]), np.diag([3.0, 1.0]), np.ones((3, 3)))
        >>> sum_share(products_without(by_group), [1, 0], [1, 1]).value
        0.9
    """
    a, b = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return _jackknifed(_form(products, a, b), _form(products, b, b), (-np.inf, np.inf))


def ratio_over_groups(of_part: ArrayLike, of_all: ArrayLike, *, low: float = 0.0) -> Estimate:
    """Ratio of two sums over groups, such as a share of the energy or a mean over tokens.

    Args:
        of_part: What each group adds above, [J].
        of_all: And below, [J].
        low: The least that the ratio can be.

    Returns:
        The ratio of the sums; undefined where nothing is below.

    Example:
        >>> ratio_over_groups([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]).value
        0.5
    """
    part, whole = (np.asarray(values, dtype=np.float64) for values in (of_part, of_all))
    sums = [np.concatenate([[values.sum()], values.sum() - values]) for values in (part, whole)]
    if sums[1][0] <= 0:
        return Estimate.undefined_because("there is nothing to average", num_units=len(whole))
    return _jackknifed(sums[0], sums[1], (low, np.inf))


def _form(products: Array, first: Array, second: Array) -> Array:
    return np.asarray(np.einsum("v,jvw,w->j", first, products, second), dtype=np.float64)


def _jackknifed(above: Array, below: Array, bounds: tuple[float, float]) -> Estimate:
    """A ratio on all groups, with its interval where every group can be left out, [1 + J] each."""
    num = len(above) - 1
    if below[0] <= _LEAST:
        return Estimate.undefined_because(NO_LENGTH, num_units=num)
    if num < MIN_GROUPS or not np.all(below > _LEAST):
        return Estimate.exact(float(np.clip(above[0] / below[0], *bounds)), num_units=num)
    return jackknifed(above / below, bounds=bounds)

"""How far the gradients of prompts agree, and which part of their noise another draw of rollouts would change.

Legend: J groups, one a prompt, S_j the summed gradient of group j; a_j and b_j those of two halves of its rollouts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import MIN_GROUPS, jackknifed
from gradscope.metrics.gram.spectrum import Array, checked_gram

_ALIKE = "at most one group of this step has a gradient"


def group_cosine(group_gram: ArrayLike) -> Estimate:
    """Mean cosine between the gradients of two different prompts, of those that have one; jackknifed over prompts.

    Args:
        group_gram: Inner products of the S_j, [J, J].

    Returns:
        A number from -1 to 1, 0 for unrelated prompts; undefined for fewer than three live groups.

    Example:
        >>> round(group_cosine([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]).value, 4)  # (0.5 + 0 + 0) / 3
        0.1667
    """
    gram = checked_gram(group_gram)
    live = np.diag(gram) > 0
    num = int(live.sum())
    if num < MIN_GROUPS:
        return Estimate.undefined_because(f"{num} groups with a gradient are too few", num_units=num)
    norms = np.sqrt(np.diag(gram)[live])
    angles = gram[np.ix_(live, live)] / norms[:, None] / norms
    with_others = angles.sum(axis=1) - 1.0
    total = with_others.sum()
    without = (total - 2 * with_others) / ((num - 1) * (num - 2))
    return jackknifed(np.concatenate([[total / (num * (num - 1))], without]), bounds=(-1.0, 1.0))


def noise_within(half_gram: ArrayLike) -> Estimate:
    """Share of the variance of a prompt's gradient that its rollouts make, not the prompt; jackknifed over prompts.

    Two halves of a group have independent rollouts and the prompt in common, so that mean a_j . b_j holds what the
    prompt has of its own, and mean |a_j - b_j|^2 / 2 what its rollouts add: that over the variance of a half,
    mean (|a_j|^2 + |b_j|^2) / 2 minus the mean product of halves of different prompts. The rest lies between prompts.

    Args:
        half_gram: Inner products of a_1, b_1, a_2, b_2 and so on, [2 J, 2 J].

    Returns:
        A share, above 1 where chance made it so; undefined for fewer than three groups, or one with a gradient.

    Example:
        >>> halves = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
        >>> noise_within(halves @ halves.T).value  # each prompt has its own direction, and its halves agree
        0.0
    """
    gram = checked_gram(half_gram)
    num = len(gram) // 2
    if num < MIN_GROUPS:
        return Estimate.undefined_because(f"{num} groups are too few", num_units=num)
    squares = np.diag(gram).reshape(num, 2).mean(axis=1)
    shared = gram[np.arange(num) * 2, np.arange(num) * 2 + 1]
    groups = gram.reshape(num, 2, num, 2).sum(axis=(1, 3)) / 4
    with_others = groups.sum(axis=1) - np.diag(groups)
    total = with_others.sum()
    products = np.concatenate([[total / (num * (num - 1))], (total - 2 * with_others) / ((num - 1) * (num - 2))])
    own = _means_without(squares - shared)
    variance = _means_without(squares) - products
    if not np.all(variance > 0):
        return Estimate.undefined_because(_ALIKE, num_units=num)
    return jackknifed(own / variance, bounds=(0.0, np.inf))


def _means_without(values: Array) -> Array:
    """The mean of all, then without each, [1 + J]."""
    return np.asarray(np.concatenate([[values.mean()], (values.sum() - values) / (len(values) - 1)]))

"""Expected updates of formulations, and how far the gradients of prompts agree, corrected for the noise of rollouts.

The cosine of two updates made from the same rollouts is near 1 for the noise that they share. The directions of their
*expectations* are a property of the formulations, and products of different groups estimate them without bias: groups
are independent, so E[u . v] = mean over j != k of S_j . S'_k, with S_j the summed gradient of group j.

Legend: R rollouts, J groups, one a prompt, G rollouts of a group, F formulations, K the Gram matrix of the score
vectors; a_j and b_j the summed gradients of two halves of the rollouts of group j.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from gradscope.estimate import Estimate
from gradscope.metrics.gram.spectrum import Array, checked_gram
from gradscope.metrics.outcomes.groups import frac_draws_all
from gradscope.metrics.uncertainty.intervals import NORMAL

MIN_GROUPS = 3  # fewer groups have no jackknife worth the name
_ONE_GRADIENT = "at most one group of this step has a gradient"
_NO_SIGNAL = "its mean over groups is not above its own noise at this step, so it has no direction"
_NO_LIMIT = "the signal may be zero, so no number of groups is too large"
_ONE_GROUP = "it rests on a single group of this step"


def pass_at_k_weights(rewards: ArrayLike, k: int) -> Array:
    """The weight of each score vector in an unbiased estimate of the gradient of pass@k, from n rollouts of a prompt.

    The gradient of 1 - (1 - p)^k is k (1 - p)^(k - 1) grad p. With the other n - 1 rollouts, c of them correct, the
    share of their (k-1)-element draws without a success, C(n-1-c, k-1) / C(n-1, k-1), is unbiased for (1-p)^(k-1), and
    their mean reward is a baseline that does not depend on this rollout; so w_i = k/n (r_i - mean of the others) times
    that share, of rewards of 0 or 1, [..., n]. At k = 1 this is leave-one-out. Its mean is that of Walder & Karkhanis
    2025 (arXiv 2505.15201), theorem on the unbiased pass@k gradient; the baseline is another.

    Raises:
        ValueError: A reward is not 0 or 1, or k is out of range.

    >>> pass_at_k_weights([1.0, 0.0, 0.0, 0.0], 2).round(4).tolist()
    [0.5, -0.1111, -0.1111, -0.1111]
    """
    values = np.asarray(rewards, dtype=np.float64)
    size = values.shape[-1]
    if np.any((values != 0.0) & (values != 1.0)):
        raise ValueError("pass@k is defined for rewards of 0 and 1")
    if not 1 <= k <= size or size < 2:
        raise ValueError(f"k lies from 1 to the {size} rollouts of a group of two or more, got {k}")
    passed = values.sum(axis=-1, keepdims=True) - values
    none_solved = frac_draws_all(size - 1, size - 1 - passed, k - 1)
    return np.asarray(k / size * (values - passed / (size - 1)) * none_solved, dtype=np.float64)


class ExpectedUpdates(Struct, frozen=True, kw_only=True):
    """Unbiased inner products of the expected updates of several formulations."""

    cross: Array  # sum over j != k of S_j . S'_k, all and with each group left out, [1 + J, F, F].
    own: Array  # sum over j of |S_j|^2, likewise, [1 + J, F]
    num_groups: int  # J

    def cosine(self, first: int, second: int) -> Estimate:
        """E u . E v / (|E u| |E v|), jackknifed over groups; undefined where either mean is not above its noise."""
        norms = self.cross[:, first, first] * self.cross[:, second, second]
        signal = (self.cross[:, first, first] > 0) & (self.cross[:, second, second] > 0)
        if self.num_groups < MIN_GROUPS:
            return _too_few(self.num_groups)
        if not signal[0]:
            return Estimate.undefined_because(_NO_SIGNAL, num_units=self.num_groups)
        if not signal.all():
            return Estimate.undefined_because(_ONE_GROUP, num_units=self.num_groups)
        values = self.cross[:, first, second] / np.sqrt(norms)
        return jackknifed(values, bounds=(-1.0, 1.0))

    def signal_to_noise(self, index: int) -> Estimate:
        """|E u|^2 over the total variance of u, u the mean of J groups: above 1 the update is mostly signal.

        At least -1, and negative where chance made the estimate of the signal so; undefined without a gradient.
        """
        if self.num_groups < MIN_GROUPS:
            return _too_few(self.num_groups)
        counts = np.array([self.num_groups] + [self.num_groups - 1] * self.num_groups, dtype=np.float64)
        signal = self.cross[:, index, index] / (counts * (counts - 1))
        variance = self.own[:, index] / counts - signal
        if not np.all(variance > 0):
            return Estimate.undefined_because(_ONE_GRADIENT, num_units=self.num_groups)
        return jackknifed(counts * signal / variance, bounds=(-1.0, np.inf))

    def critical_batch_size(self, index: int) -> Estimate:
        """The number of groups at which signal and noise of the step's update are equal: J over the signal to noise.

        Below it twice the groups make nearly twice the progress, above it they add little. Undefined where the ratio
        may be zero; J over the upper end of its interval is then still the least that there can be.
        """
        ratio = self.signal_to_noise(index)
        if ratio.value is None:
            return ratio
        if ratio.low is None or ratio.low <= 0 or ratio.high is None:
            return Estimate.undefined_because(_NO_LIMIT, num_units=self.num_groups)
        return ratio.map(lambda value: self.num_groups / value)


def expected_updates(score_gram: ArrayLike, advantages: ArrayLike, index: ArrayLike) -> ExpectedUpdates:
    """Inner products of expected updates, with each group left out once.

    From the Gram matrix K of the score vectors, [R, R], one row of weights a formulation, [F, R], and the group of each
    rollout as a number from 0 to J - 1, [R].

    >>> updates = expected_updates(np.ones((4, 4)), [[1.0] * 4], [0, 1, 2, 3])
    >>> updates.cosine(0, 0).value
    1.0
    """
    gram, weights = checked_gram(score_gram), np.asarray(advantages, dtype=np.float64)
    groups = np.asarray(index, dtype=np.int64)
    members = np.eye(int(groups.max()) + 1)[groups]
    blocks = np.where(groups[:, None] == groups[None, :], gram, 0.0)
    # [F, F, J]: group j's sum under one formulation times all groups' sums, and times its own, under the other
    with_all = (weights[:, None, :] * (weights @ gram)[None, :, :]) @ members
    with_own = (weights[:, None, :] * (weights @ blocks)[None, :, :]) @ members
    across = np.moveaxis(with_all - with_own, -1, 0)
    own = np.diagonal(with_own, axis1=0, axis2=1)
    total = across.sum(axis=0)
    # without group j all products with it go, from either side
    cross = np.concatenate([total[None], total - across - across.swapaxes(1, 2)])
    return ExpectedUpdates(
        cross=cross, own=np.concatenate([own.sum(axis=0)[None], own.sum(axis=0) - own]), num_groups=members.shape[1]
    )


def jackknifed(values: Array, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """The first of some values [1 + J] with its normal interval by the jackknife of the others, cut at the bounds."""
    num = len(values) - 1
    # the estimate of a cosine may exceed 1; cutting the replicates too would pass for certainty
    error = NORMAL * float(np.sqrt((num - 1) / num * np.sum((values[1:] - values[1:].mean()) ** 2)))
    value, low, high = (float(np.clip(values[0] + side * error, *bounds)) for side in (0, -1, 1))
    return Estimate(value=value, low=low, high=high, num_units=num)


def _too_few(num_groups: int, which: str = "groups") -> Estimate:
    return Estimate.undefined_because(f"{num_groups} {which} are too few", num_units=num_groups)


def group_cosine(group_gram: ArrayLike) -> Estimate:
    """Mean cosine between the gradients S_j of two different prompts, from their inner products, [J, J].

    Jackknifed over the prompts that have a gradient; 0 for unrelated ones, undefined for fewer than three.

    >>> round(group_cosine([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]]).value, 4)  # (0.5 + 0 + 0) / 3
    0.1667
    """
    gram = checked_gram(group_gram)
    live = np.diag(gram) > 0
    num = int(live.sum())
    if num < MIN_GROUPS:
        return _too_few(num, "groups with a gradient")
    norms = np.sqrt(np.diag(gram)[live])
    angles = gram[np.ix_(live, live)] / norms[:, None] / norms
    cross_sums = angles.sum(axis=1) - 1.0
    total = cross_sums.sum()
    without = (total - 2 * cross_sums) / ((num - 1) * (num - 2))
    return jackknifed(np.concatenate([[total / (num * (num - 1))], without]), bounds=(-1.0, 1.0))


def noise_within(half_gram: ArrayLike) -> Estimate:
    """Share of the variance of a prompt's gradient that its rollouts make, not the prompt; jackknifed over prompts.

    Two halves of a group have independent rollouts and the prompt in common, so that mean a_j . b_j holds what the
    prompt has of its own, and mean |a_j - b_j|^2 / 2 what its rollouts add: that over the variance of a half, mean
    (|a_j|^2 + |b_j|^2) / 2 minus the mean product of halves of different prompts. The rest lies between prompts. Above
    1 where chance made it so; undefined for fewer than three groups, or one with a gradient. From the inner products of
    a_1, b_1, a_2, b_2 and so on, [2 J, 2 J].

    >>> halves = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])
    >>> noise_within(halves @ halves.T).value  # each prompt has its own direction, and its halves agree
    0.0
    """
    gram = checked_gram(half_gram)
    num = len(gram) // 2
    if num < MIN_GROUPS:
        return _too_few(num)
    squares = np.diag(gram).reshape(num, 2).mean(axis=1)
    shared = gram[np.arange(num) * 2, np.arange(num) * 2 + 1]
    groups = gram.reshape(num, 2, num, 2).sum(axis=(1, 3)) / 4
    cross_sums = groups.sum(axis=1) - np.diag(groups)
    total = cross_sums.sum()
    products = np.concatenate([[total / (num * (num - 1))], (total - 2 * cross_sums) / ((num - 1) * (num - 2))])
    own = means_without(squares - shared)
    variance = means_without(squares) - products
    if not np.all(variance > 0):
        return Estimate.undefined_because(_ONE_GRADIENT, num_units=num)
    return jackknifed(own / variance, bounds=(0.0, np.inf))


def means_without(values: Array) -> Array:
    """The mean of all, then without each, [1 + J]."""
    return np.asarray(np.concatenate([[values.mean()], (values.sum() - values) / (len(values) - 1)]))

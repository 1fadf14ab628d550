"""Expected updates of formulations, how far gradients of prompts agree or interfere, and how noisy baselines are.

The cosine of two updates made from the same rollouts is near 1 for the noise that they share. The directions of their
*expectations* are a property of the formulations, and products of different groups estimate them without bias: groups
are independent, so E[u . v] = mean over j != k of S_j . S'_k, with S_j the summed gradient of group j.

To first order a small step t S_j changes the log-probability of an answer with the score vector s by t S_j . s. The
correct answers of another prompt did not enter S_j, so the sign of the product is not the noise that both share.
Predicting interference by products of scores is in arXiv 2510.02230, ranking training prompts by products with held-out
ones in 2602.21492. Where the answers of a held-out prompt are samples of the measured policy itself, the mean score of
the correct ones is in expectation the gradient of the log of its pass@1 (the score-function identity), so the same
product is the relative change of success.

For one prompt the estimate s (r - b) of the gradient has the same mean for every b that does not depend on the rollout
itself, so baselines differ in E[|s|^2 (r - b)^2] alone, and the best constant is b* = E[|s|^2 r] / E[|s|^2]
(Greensmith, Bartlett & Baxter 2004, JMLR 5). It is the mean reward exactly where the reward is uncorrelated with |s|^2.
All this is exact for token weights that do not depend on the completion, where the mean of s is zero; a loss that
divides by a completion's length bends it a little.

Legend: R rollouts, J or n groups, one a prompt, G rollouts of a group, F formulations, M held-out prompts, K the Gram
matrix of the score vectors, r rewards, q = |s|^2 their squared norms, b baselines; a_j and b_j the summed gradients of
two halves of the rollouts of group j, S_j that of all, C_k the mean score vector of the correct answers of prompt k,
trained or held out, D_j that of group j's own, e_jk = S_j . C_k.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.part_sums import MIN_GROUPS, left_out_sums
from gradscope.metrics.gram.spectrum import Array, checked_gram
from gradscope.metrics.outcomes.groups import frac_draws_all
from gradscope.metrics.outcomes.reward_shares import correlation_of_sums
from gradscope.metrics.uncertainty.bootstrap import bootstrap_statistics
from gradscope.metrics.uncertainty.intervals import NORMAL, crossed_jackknife
from gradscope.metrics.uncertainty.paired import student_mean

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
    squared_norms: Array  # sum over j of |S_j|^2, likewise, [1 + J, F]
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
        variance = self.squared_norms[:, index] / counts - signal
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
    squared_norms = np.diagonal(with_own, axis1=0, axis2=1)
    total = across.sum(axis=0)
    # without group j all products with it go, from either side
    cross = np.concatenate([total[None], total - across - across.swapaxes(1, 2)])
    return ExpectedUpdates(
        cross=cross,
        squared_norms=np.concatenate([squared_norms.sum(axis=0)[None], squared_norms.sum(axis=0) - squared_norms]),
        num_groups=members.shape[1],
    )


def jackknifed(values: Array, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """The first of some values [1 + J] with its normal interval by the jackknife of the others, cut at the bounds."""
    num = len(values) - 1
    # the estimate of a cosine may exceed 1; cutting the replicates too would pass for certainty
    error = NORMAL * float(np.sqrt((num - 1) / num * np.sum((values[1:] - values[1:].mean()) ** 2)))
    value, low, high = (float(np.clip(values[0] + side * error, *bounds)) for side in (0, -1, 1))
    return Estimate(value=value, low=low, high=high, num_units=num)


def _too_few(num_groups: int, kind: str = "groups") -> Estimate:
    return Estimate.undefined_because(f"{num_groups} {kind} are too few", num_units=num_groups)


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
    left_out = (total - 2 * cross_sums) / ((num - 1) * (num - 2))
    return jackknifed(np.concatenate([[total / (num * (num - 1))], left_out]), bounds=(-1.0, 1.0))


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
    noise = _means_without(squares - shared)
    variance = _means_without(squares) - products
    if not np.all(variance > 0):
        return Estimate.undefined_because(_ONE_GRADIENT, num_units=num)
    return jackknifed(noise / variance, bounds=(0.0, np.inf))


def _means_without(values: Array) -> Array:
    """The mean of all, then without each, [1 + J]."""
    return np.asarray(np.concatenate([[values.mean()], (values.sum() - values) / (len(values) - 1)]))


_IN_PAIRS = "groups with a gradient or a correct answer"
_NO_OWN_EFFECT = "the step does not raise the correct answers of its own prompts"
_HANGS_ON_ONE = "it hangs on a single group of this step"


class _Effects(Struct, frozen=True, kw_only=True):
    """How gradients of prompts (rows) change correct answers of prompts (columns)."""

    effect: Array  # e_jk per unit of step, [J, J] or [J, M]; 0 for one without a correct answer
    cosine: Array  # that over |S_j| |C_k|; 0 where either is zero

    def frac_hurt(self) -> Estimate:
        """Share of pairs of three prompts or more of which one lowers the other's correct answers; jackknifed."""
        return self._mean_over_pairs((self.effect < 0).astype(np.float64), (0.0, 1.0))

    def mean_cosine(self) -> Estimate:
        """Mean cosine of a prompt's gradient with another's correct answers, 0 for unrelated prompts."""
        return self._mean_over_pairs(self.cosine, (-1.0, 1.0))

    @abstractmethod
    def _mean_over_pairs(self, values: Array, bounds: tuple[float, float]) -> Estimate:
        """The mean over the pairs that count."""


class PromptEffects(_Effects, frozen=True, kw_only=True):
    """How the gradient of each prompt changes the correct answers of each."""

    pulls: NDArray[np.bool_]  # whether a prompt has a gradient, [J]
    is_solved: NDArray[np.bool_]  # whether it has a correct answer, [J]

    def transfer(self) -> Estimate:
        """The effect of all other prompts on a prompt's correct answers over the prompt's own effect, in the sum.

        Negative where they undo what the prompt learned; jackknifed over prompts. Undefined for fewer than three, or
        where prompts' own gradients do not raise their correct answers.
        """
        counted = self.pulls | self.is_solved
        num = int(counted.sum())
        if num < MIN_GROUPS:
            return _too_few(num, _IN_PAIRS)
        own_effects = np.diag(self.effect)
        cross_effects = _without_each(self.effect - np.diag(own_effects), counted)
        own_sums = own_effects.sum() - np.concatenate([[0.0], own_effects[counted]])
        if np.any(own_sums <= 0):
            return Estimate.undefined_because(_NO_OWN_EFFECT if own_sums[0] <= 0 else _HANGS_ON_ONE, num_units=num)
        return jackknifed(cross_effects / own_sums)

    def influences(self) -> list[Estimate]:
        """The effect of each prompt on the correct answers of the others, in units of prompts' own effects, [J].

        The mean of e_jk over other prompts with a correct answer, over the mean of e_kk, with Student's interval over
        them; undefined where prompts have no effect on themselves, the group no gradient, or no other an answer.
        """
        unit = float(np.diag(self.effect)[self.is_solved].mean()) if self.is_solved.any() else 0.0
        if unit <= 0:
            return [Estimate.undefined_because(_NO_OWN_EFFECT)] * len(self.effect)
        estimates = []
        for index, effect in enumerate(self.effect):
            other_solved = self.is_solved & (np.arange(len(effect)) != index)
            if not self.pulls[index]:
                estimates.append(Estimate.undefined_because("the group has no gradient"))
            elif not other_solved.any():
                estimates.append(Estimate.undefined_because("no other group has a correct answer"))
            else:
                estimates.append(student_mean(effect[other_solved] / unit))
        return estimates

    def _mean_over_pairs(self, values: Array, bounds: tuple[float, float]) -> Estimate:
        pairs = np.outer(self.pulls, self.is_solved) & ~np.eye(len(values), dtype=np.bool_)
        counted = self.pulls | self.is_solved
        if counted.sum() < MIN_GROUPS or not pairs.any():
            return _too_few(int(counted.sum()), _IN_PAIRS)
        parts = pairs.astype(np.float64), np.where(pairs, values, 0.0)
        counts, sums = (_without_each(part, counted) for part in parts)
        if np.any(counts <= 0):
            return Estimate.undefined_because(_HANGS_ON_ONE, num_units=int(counted.sum()))
        return jackknifed(sums / counts, bounds)


def prompt_effects(gram: ArrayLike, weights: ArrayLike, groups: ArrayLike, is_correct: ArrayLike) -> PromptEffects:
    """How the gradient of each prompt changes the correct answers of each, from the Gram matrix K of scores, [R, R].

    Each rollout has its advantage, its group as a number from 0 to J - 1, and whether its answer is right, [R] each.

    >>> scores = np.array([[2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0]])
    >>> effects = prompt_effects(scores @ scores.T, [0.5, -0.5, 0.5, -0.5], [0, 0, 1, 1], [True, False, True, False])
    >>> effects.effect.tolist()  # each prompt undoes a part of the other's own effect
    [[2.5, -0.5], [-0.5, 1.0]]
    """
    matrix = checked_gram(gram)
    pulling, right, is_solved = _by_prompt(weights, groups, is_correct)
    lengths = [_lengths(matrix, side) for side in (pulling, right)]
    effect = pulling @ matrix @ right.T
    return PromptEffects(effect=effect, cosine=_cosines(effect, *lengths), pulls=lengths[0] > 0, is_solved=is_solved)


def _by_prompt(weights: ArrayLike, groups: ArrayLike, is_correct: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
    """What makes S_j and C_j of score vectors, [J, R] each, and which groups have a correct answer, [J]."""
    members = np.equal.outer(np.arange(int(np.max(groups)) + 1), np.asarray(groups)).astype(np.float64)
    right = members * np.asarray(is_correct, dtype=np.float64)
    num_right = right.sum(axis=1, keepdims=True)
    return members * np.asarray(weights, dtype=np.float64), right / np.maximum(num_right, 1.0), num_right[:, 0] > 0


def _lengths(gram: Array, combinations: Array) -> Array:
    return np.asarray(np.sqrt(np.clip(np.diag(combinations @ gram @ combinations.T), 0.0, None)))


def _cosines(products: Array, first: Array, second: Array) -> Array:
    scale = np.outer(first, second)
    return np.clip(np.divide(products, scale, out=np.zeros_like(products), where=scale > 0), -1.0, 1.0)


def _without_each(pairs: Array, counted: NDArray[np.bool_]) -> Array:
    """The sum over all pairs of different groups, then without the pairs of each counted group, [1 + counted]."""
    leaving = (pairs.sum(axis=0) + pairs.sum(axis=1))[counted]
    return np.asarray(pairs.sum() - np.concatenate([[0.0], leaving]))


class HeldoutEffects(_Effects, frozen=True, kw_only=True):
    """How the gradient of each of J groups that have one changes the correct answers of each held-out prompt."""

    norms: tuple[float, float]  # mean |S_j| and mean |C_k|
    trained: Array | None  # S_i . D_j, [J, J]; 0 for a group j without a correct answer. None where it is not known
    unknown: str  # why it is not known
    is_solved: NDArray[np.bool_]  # whether a group has a correct answer that it was trained on, [J]
    pulls: NDArray[np.bool_]  # which groups of the step have a gradient; J of them do

    def transfer(self) -> Estimate:
        """The step's effect on a held-out prompt's correct answers over its effect on those that it was trained on.

        A ratio of means, 1 where held-out answers gain as much; jackknifed over prompts of both kinds. Undefined for
        fewer than three of either, or where the step does not raise its own prompts' correct answers.
        """
        if (few := self._too_few()) is not None:
            return few
        num = sum(self.effect.shape)
        if self.trained is None:
            return Estimate.undefined_because(self.unknown, num_units=num)
        # a left-out training prompt loses both its gradient and its correct answers
        held, counts = left_out_sums(self.effect.mean(axis=1)), left_out_sums(self.is_solved)
        total, leaving = self.trained.sum(), self.trained.sum(axis=0) + self.trained.sum(axis=1) - np.diag(self.trained)
        gains = np.concatenate([[total], total - leaving]) / np.maximum(counts, 1.0)
        if np.any(gains <= 0):
            return Estimate.undefined_because(_NO_OWN_EFFECT if gains[0] <= 0 else _HANGS_ON_ONE, num_units=num)
        without_heldout = _means_without(self.effect.sum(axis=0))[1:] / gains[0]
        ratios = held / gains
        return crossed_jackknife(float(ratios[0]), [ratios[1:], without_heldout], low=-np.inf, high=np.inf)

    def influences(self) -> list[Estimate]:
        """The mean of e_jk over k, in units of the mean |S_j| times the mean |C_k|, [J].

        A cosine weighed by sizes: 1 for a gradient of average norm along all held-out answers. Student's interval over
        held-out prompts: for others of these and this very step.
        """
        unit = math.prod(self.norms)
        if unit <= 0:
            return [Estimate.undefined_because("no held-out answer has a gradient")] * len(self.effect)
        return [student_mean(row / unit) for row in self.effect]

    def _too_few(self) -> Estimate | None:
        conditions = ("groups have a gradient", "held-out prompts have a correct answer")
        for num, condition in zip(self.effect.shape, conditions, strict=True):
            if num < MIN_GROUPS:
                return Estimate.undefined_because(f"fewer than {MIN_GROUPS} {condition}", num_units=num)
        return None

    def _mean_over_pairs(self, values: Array, bounds: tuple[float, float]) -> Estimate:
        if (few := self._too_few()) is not None:
            return few
        left_out = [_means_without(values.mean(axis=axis))[1:] for axis in (1, 0)]
        return crossed_jackknife(float(values.mean()), left_out, low=bounds[0], high=bounds[1])


def heldout_effects(
    gram: ArrayLike,
    weights: ArrayLike,
    groups: ArrayLike,
    is_correct: ArrayLike,
    cross: ArrayLike,
    norms: ArrayLike,
    trained_products: ArrayLike | None,
    unknown: str = "",
) -> HeldoutEffects:
    """How the groups of a step with a gradient change the correct answers of held-out prompts, by inner products.

    Args:
        gram: Gram matrix K of the score vectors, [R, R]; ``weights``, ``groups`` and ``is_correct`` as in
            :func:`prompt_effects`, of answers that were trained on.
        cross: Score vectors times C_k, [R, M].
        norms: |C_k|, [M].
        trained_products: Score vectors times the gradient of each correct rollout's log-probability, [R, R]; None where
            not known.
        unknown: Why it is not.

    >>> effects = heldout_effects(np.eye(2), [1, -1], [0, 1], [True, False], [[3.0], [4.0]], [5.0], None)
    >>> effects.effect.tolist(), effects.cosine.round(2).tolist()
    ([[3.0], [-4.0]], [[0.6], [-0.8]])
    """
    pulling, right, is_solved = _by_prompt(weights, groups, is_correct)
    lengths, heldout_norms = _lengths(checked_gram(gram), pulling), np.asarray(norms, dtype=np.float64)
    pulls = lengths > 0
    effect = (pulling @ np.asarray(cross, dtype=np.float64))[pulls]
    effects = None if trained_products is None else pulling @ np.asarray(trained_products, dtype=np.float64) @ right.T
    return HeldoutEffects(
        effect=effect,
        cosine=_cosines(effect, lengths[pulls], heldout_norms),
        norms=(_mean(lengths[pulls]), _mean(heldout_norms)),
        trained=None if effects is None else effects[np.ix_(pulls, pulls)],
        unknown=unknown,
        is_solved=is_solved[pulls],
        pulls=pulls,
    )


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0


REFERENCE = "leave_one_out"
"""The baseline of reference: unbiased, and equal to centering by the group's mean up to a factor."""


def optimal_baselines(rewards: ArrayLike, squared_norms: ArrayLike) -> Array:
    """The constant that minimizes the second moment of a group's gradient, sum(q r) / sum(q), [..., 1].

    From r and q of groups of one size, [..., G] each; the mean reward where every score vector is zero.

    >>> optimal_baselines([[1.0, 0.0], [1.0, 0.0]], [[3.0, 1.0], [0.0, 0.0]]).tolist()
    [[0.75], [0.5]]
    """
    values, weights = _checked(rewards, squared_norms)
    total, weighted = weights.sum(axis=-1, keepdims=True), (weights * values).sum(axis=-1, keepdims=True)
    best = np.divide(weighted, total, out=values.mean(axis=-1, keepdims=True), where=total > 0)
    return np.asarray(best, dtype=np.float64)


def baselines(rewards: ArrayLike, squared_norms: ArrayLike) -> dict[str, Array]:
    """Baselines of each rollout that look at one group only, [n, G] each, from r and q, [n, G] each, G >= 2.

    ``group_mean`` and ``optimal`` see the rollout that they are for: the first shrinks the gradient by (G - 1)/G, the
    second is a bound that no constant of the group can beat on these rollouts. The others do not.

    >>> by_name = baselines([[1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]])
    >>> by_name["leave_one_out"].tolist(), by_name["optimal_leave_one_out"].tolist()
    ([[0.0, 0.5, 0.5]], [[0.0, 0.5, 0.5]])
    """
    values, weights = _checked(rewards, squared_norms)
    size = values.shape[-1]
    total, weighted = weights.sum(axis=-1, keepdims=True), (weights * values).sum(axis=-1, keepdims=True)
    leave_one_out = (values.sum(axis=-1, keepdims=True) - values) / (size - 1)
    mean = np.broadcast_to(values.mean(axis=-1, keepdims=True), values.shape)
    left = total - weights
    return {
        "zero": np.zeros(values.shape),
        "group_mean": mean,
        "leave_one_out": leave_one_out,
        "optimal": np.broadcast_to(optimal_baselines(values, weights), values.shape),
        "optimal_leave_one_out": np.divide(
            weighted - weights * values, left, out=leave_one_out.copy(), where=left > 1e-12 * total
        ),
    }


def second_moment(rewards: ArrayLike, squared_norms: ArrayLike, baseline: ArrayLike) -> Array:
    """The mean of |s|^2 (r - b)^2 over the rollouts of each group, [n], from r, q and b, [n, G] each.

    >>> second_moment([[1.0, 0.0]], [[2.0, 4.0]], [[0.5, 0.5]]).tolist()
    [0.75]
    """
    values, weights = _checked(rewards, squared_norms)
    return np.asarray(np.mean(weights * (values - np.asarray(baseline)) ** 2, axis=-1), dtype=np.float64)


def reward_norm_correlation(rewards: ArrayLike, squared_norms: ArrayLike) -> Estimate:
    """Correlation of r and q, [n, G] each, within groups, pooled: what makes the mean a poor baseline.

    Its interval resamples groups. Undefined where rewards or norms do not vary within any group.

    >>> reward_norm_correlation([[1.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [5.0, 7.0]]).value.__round__(3)
    -0.949
    """
    values, weights = _checked(rewards, squared_norms)
    x = values - values.mean(axis=-1, keepdims=True)
    y = weights - weights.mean(axis=-1, keepdims=True)
    moments = np.stack([np.sum(product, axis=-1) for product in (x * y, x * x, y * y)])
    if moments[1:].sum(axis=1).min() == 0.0:
        return Estimate.undefined_because("rewards or norms do not vary within any group", num_units=len(values))
    (correlation,) = bootstrap_statistics(correlation_of_sums, moments.T)
    return correlation.within(-1.0, 1.0)


def _checked(rewards: ArrayLike, squared_norms: ArrayLike) -> tuple[Array, Array]:
    values, weights = np.asarray(rewards, dtype=np.float64), np.asarray(squared_norms, dtype=np.float64)
    if values.shape != weights.shape or not (np.all(np.isfinite(values)) and np.all(weights >= 0)):
        raise ValueError(f"rewards and squared norms go together, got shapes {values.shape} and {weights.shape}")
    return values, weights

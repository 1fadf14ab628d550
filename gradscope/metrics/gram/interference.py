"""How a step along the gradient of one prompt changes the correct answers of other prompts, trained or held out.

To first order a small step t S_j changes the log-probability of an answer with the score vector s by t S_j . s. The
correct answers of another prompt did not enter S_j, so the sign of the product is not the noise that both share.
Predicting interference by products of scores is in arXiv 2510.02230, ranking training prompts by products with held-out
ones in 2602.21492. Where the answers of a held-out prompt are samples of the measured policy itself, the mean score of
the correct ones is in expectation the gradient of the log of its pass@1 (the score-function identity), so the same
product is the relative change of success.

Legend: R rollouts, J groups, one a prompt, M held-out prompts, S_j the summed gradient of group j, C_k the mean score
vector of the correct answers of prompt k, trained or held out, D_j that of group j's own, e_jk = S_j . C_k.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import MIN_GROUPS, jackknifed, means_without
from gradscope.metrics.gram.part_sums import left_out_sums
from gradscope.metrics.gram.spectrum import Array, checked_gram
from gradscope.metrics.uncertainty.intervals import crossed_jackknife
from gradscope.metrics.uncertainty.paired import student_mean

NO_OWN = "the step does not raise the correct answers of its own prompts"
HANGS_ON_ONE = "it hangs on a single group of this step"


class _Effects(Struct, frozen=True, kw_only=True):
    """How gradients of prompts (rows) change correct answers of prompts (columns)."""

    effect: Array  # e_jk per unit of step, [J, J] or [J, M]; 0 for one without a correct answer
    cosine: Array  # that over |S_j| |C_k|; 0 where either is zero

    def frac_hurt(self) -> Estimate:
        """Share of pairs of three prompts or more of which one lowers the other's correct answers; jackknifed."""
        return self._mean_over_pairs((self.effect < 0).astype(np.float64), (0.0, 1.0))

    def mean_cosine(self) -> Estimate:
        """Mean cosine of a prompt's gradient with another's correct answers, 0 for unrelated prompts; likewise."""
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
            return _too_few(num)
        own = np.diag(self.effect)
        cross_effects = _without_each(self.effect - np.diag(own), counted)
        alone = own.sum() - np.concatenate([[0.0], own[counted]])
        if np.any(alone <= 0):
            return Estimate.undefined_because(NO_OWN if alone[0] <= 0 else HANGS_ON_ONE, num_units=num)
        return jackknifed(cross_effects / alone)

    def influences(self) -> list[Estimate]:
        """The effect of each prompt on the correct answers of the others, in units of prompts' own effects, [J].

        The mean of e_jk over other prompts with a correct answer, over the mean of e_kk, with Student's interval over
        them; undefined where prompts have no effect on themselves, the group no gradient, or no other an answer.
        """
        own = float(np.diag(self.effect)[self.is_solved].mean()) if self.is_solved.any() else 0.0
        if own <= 0:
            return [Estimate.undefined_because(NO_OWN)] * len(self.effect)
        estimates = []
        for index, effect in enumerate(self.effect):
            other_solved = self.is_solved & (np.arange(len(effect)) != index)
            if not self.pulls[index]:
                estimates.append(Estimate.undefined_because("the group has no gradient"))
            elif not other_solved.any():
                estimates.append(Estimate.undefined_because("no other group has a correct answer"))
            else:
                estimates.append(student_mean(effect[other_solved] / own))
        return estimates

    def _mean_over_pairs(self, values: Array, bounds: tuple[float, float]) -> Estimate:
        pairs = np.outer(self.pulls, self.is_solved) & ~np.eye(len(values), dtype=np.bool_)
        counted = self.pulls | self.is_solved
        if counted.sum() < MIN_GROUPS or not pairs.any():
            return _too_few(int(counted.sum()))
        parts = pairs.astype(np.float64), np.where(pairs, values, 0.0)
        counts, sums = (_without_each(part, counted) for part in parts)
        if np.any(counts <= 0):
            return Estimate.undefined_because(HANGS_ON_ONE, num_units=int(counted.sum()))
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
    of_group = np.equal.outer(np.arange(int(np.max(groups)) + 1), np.asarray(groups)).astype(np.float64)
    right = of_group * np.asarray(is_correct, dtype=np.float64)
    num_right = right.sum(axis=1, keepdims=True)
    return of_group * np.asarray(weights, dtype=np.float64), right / np.maximum(num_right, 1.0), num_right[:, 0] > 0


def _lengths(gram: Array, combinations: Array) -> Array:
    return np.asarray(np.sqrt(np.clip(np.diag(combinations @ gram @ combinations.T), 0.0, None)))


def _cosines(products: Array, first: Array, second: Array) -> Array:
    scale = np.outer(first, second)
    return np.clip(np.divide(products, scale, out=np.zeros_like(products), where=scale > 0), -1.0, 1.0)


def _without_each(pairs: Array, counted: NDArray[np.bool_]) -> Array:
    """The sum over all pairs of different groups, then without the pairs of each counted group, [1 + counted]."""
    leaving = (pairs.sum(axis=0) + pairs.sum(axis=1))[counted]
    return np.asarray(pairs.sum() - np.concatenate([[0.0], leaving]))


def _too_few(num: int) -> Estimate:
    return Estimate.undefined_because(f"{num} groups with a gradient or a correct answer are too few", num_units=num)


class HeldoutEffects(_Effects, frozen=True, kw_only=True):
    """How the gradient of each of J groups that have one changes the correct answers of each held-out prompt."""

    norms: tuple[float, float]  # mean |S_j| and mean |C_k|
    own: Array | None  # S_i . D_j, [J, J]; 0 for a group j without a correct answer. None where it is not known.
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
        if self.own is None:
            return Estimate.undefined_because(self.unknown, num_units=num)
        # a left-out training prompt goes from both sides: its gradient, and its correct answers
        held, counts = left_out_sums(self.effect.mean(axis=1)), left_out_sums(self.is_solved)
        total, leaving = self.own.sum(), self.own.sum(axis=0) + self.own.sum(axis=1) - np.diag(self.own)
        own = np.concatenate([[total], total - leaving]) / np.maximum(counts, 1.0)
        if np.any(own <= 0):
            return Estimate.undefined_because(NO_OWN if own[0] <= 0 else HANGS_ON_ONE, num_units=num)
        without_heldout = means_without(self.effect.sum(axis=0))[1:] / own[0]
        ratios = held / own
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
        left_out = [means_without(values.mean(axis=axis))[1:] for axis in (1, 0)]
        return crossed_jackknife(float(values.mean()), left_out, low=bounds[0], high=bounds[1])


def heldout_effects(
    gram: ArrayLike,
    weights: ArrayLike,
    groups: ArrayLike,
    is_correct: ArrayLike,
    cross: ArrayLike,
    norms: ArrayLike,
    own: ArrayLike | None,
    unknown: str = "",
) -> HeldoutEffects:
    """How the groups of a step with a gradient change the correct answers of held-out prompts, by inner products.

    Args:
        gram: Gram matrix K of the score vectors, [R, R]; ``weights``, ``groups`` and ``is_correct`` as in
            :func:`prompt_effects`, of answers that were trained on.
        cross: Score vectors times C_k, [R, M].
        norms: |C_k|, [M].
        own: Score vectors times the gradient of each correct rollout's log-probability, [R, R]; None where not known.
        unknown: Why it is not.

    >>> effects = heldout_effects(np.eye(2), [1, -1], [0, 1], [True, False], [[3.0], [4.0]], [5.0], None)
    >>> effects.effect.tolist(), effects.cosine.round(2).tolist()
    ([[3.0], [-4.0]], [[0.6], [-0.8]])
    """
    pulling, right, is_solved = _by_prompt(weights, groups, is_correct)
    lengths, heldout_norms = _lengths(checked_gram(gram), pulling), np.asarray(norms, dtype=np.float64)
    pulls = lengths > 0
    effect = (pulling @ np.asarray(cross, dtype=np.float64))[pulls]
    trained = None if own is None else pulling @ np.asarray(own, dtype=np.float64) @ right.T
    return HeldoutEffects(
        effect=effect,
        cosine=_cosines(effect, lengths[pulls], heldout_norms),
        norms=(_mean(lengths[pulls]), _mean(heldout_norms)),
        own=None if trained is None else trained[np.ix_(pulls, pulls)],
        unknown=unknown,
        is_solved=is_solved[pulls],
        pulls=pulls,
    )


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0

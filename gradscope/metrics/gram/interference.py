"""What a step along the gradient of one prompt does to the correct answers of the others, to first order.

A small step t S_j changes the log-probability of an answer with the score vector s by t S_j . s. The correct answers of
another prompt did not enter S_j, so the sign of the product is not the noise that both share. Predicting interference
by products of scores is in arXiv 2510.02230.

Legend: R rollouts, J groups, one a prompt, S_j the summed gradient of group j, C_k the mean score vector of the correct
rollouts of group k, e_jk = S_j . C_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.estimate import Estimate
from gradscope.metrics.gram.alignment import MIN_GROUPS, jackknifed
from gradscope.metrics.gram.spectrum import Array, checked_gram
from gradscope.metrics.uncertainty.paired import student_mean

NO_OWN = "the step does not raise the correct answers of its own prompts"
HANGS_ON_ONE = "it hangs on a single group of this step"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEffects:
    """How the gradient of each prompt changes the correct answers of each."""

    effect: Array
    """e_jk per unit of step, [J, J]; rows are who pulls, columns who is pulled, 0 for one without a correct answer."""
    cosine: Array
    """That over |S_j| |C_k|, [J, J]; 0 where either is zero."""
    pulls: NDArray[np.bool_]
    """Whether a prompt has a gradient, [J]."""
    is_solved: NDArray[np.bool_]
    """Whether it has a correct answer, [J]."""

    def frac_hurt(self) -> Estimate:
        """Share of pairs of different prompts of which the first lowers the correct answers of the second.

        Returns:
            From 0 to 1, jackknifed over prompts; undefined for fewer than three prompts.
        """
        return self._mean_over_pairs((self.effect < 0).astype(np.float64), (0.0, 1.0))

    def mean_cosine(self) -> Estimate:
        """Mean cosine of the gradient of a prompt with the correct answers of another, over such pairs.

        Returns:
            From -1 to 1, 0 for unrelated prompts; jackknifed over prompts; undefined for fewer than three prompts.
        """
        return self._mean_over_pairs(self.cosine, (-1.0, 1.0))

    def transfer(self) -> Estimate:
        """What all other prompts do to a prompt's correct answers over what it does for itself, in the sum.

        Returns:
            A ratio, negative where the others undo what the prompt learned; jackknifed over prompts. Undefined for
            fewer than three prompts, or where their own gradients do not raise their correct answers.
        """
        num = self._num_prompts
        if num < MIN_GROUPS:
            return _too_few(num)
        own = np.diag(self.effect)
        between = self.effect - np.diag(own)
        kept = self.pulls | self.is_solved
        leaving = np.concatenate([[0.0], (between.sum(axis=0) + between.sum(axis=1))[kept]])
        others, alone = between.sum() - leaving, own.sum() - np.concatenate([[0.0], own[kept]])
        if alone[0] <= 0:
            return Estimate.undefined_because(NO_OWN, num_units=num)
        if np.any(alone <= 0):
            return Estimate.undefined_because(HANGS_ON_ONE, num_units=num)
        return jackknifed(others / alone)

    def influences(self) -> list[Estimate]:
        """What each prompt does to the correct answers of the others, in units of what prompts do for themselves.

        Returns:
            For each group the mean of e_jk over the others with a correct answer, over the mean of e_kk, with
            Student's interval over the others, [J]; undefined where prompts do nothing for themselves, the group has
            no gradient, or no other has a correct answer.
        """
        own = float(np.diag(self.effect)[self.is_solved].mean()) if self.is_solved.any() else 0.0
        if own <= 0:
            return [Estimate.undefined_because(NO_OWN)] * len(self.effect)
        found = []
        for place, effect in enumerate(self.effect):
            others = self.is_solved & (np.arange(len(effect)) != place)
            if not self.pulls[place]:
                found.append(Estimate.undefined_because("the group has no gradient"))
            elif not others.any():
                found.append(Estimate.undefined_because("no other group has a correct answer"))
            else:
                found.append(student_mean(effect[others] / own))
        return found

    @property
    def _num_prompts(self) -> int:
        return int((self.pulls | self.is_solved).sum())

    def _mean_over_pairs(self, values: Array, bounds: tuple[float, float]) -> Estimate:
        pairs = np.outer(self.pulls, self.is_solved) & ~np.eye(len(values), dtype=np.bool_)
        kept = self.pulls | self.is_solved
        if kept.sum() < MIN_GROUPS or not pairs.any():
            return _too_few(int(kept.sum()))
        counts, sums = (_without_each(part, kept) for part in (pairs.astype(np.float64), np.where(pairs, values, 0.0)))
        if np.any(counts <= 0):
            return Estimate.undefined_because(HANGS_ON_ONE, num_units=int(kept.sum()))
        return jackknifed(sums / counts, bounds)


def prompt_effects(gram: ArrayLike, weights: ArrayLike, groups: ArrayLike, is_correct: ArrayLike) -> PromptEffects:
    """How the gradient of each prompt changes the correct answers of each, from the Gram matrix of score vectors.

    Args:
        gram: Gram matrix K of the score vectors, [R, R].
        weights: The advantage of each rollout, [R].
        groups: Its group as a number from 0 to J - 1, [R].
        is_correct: Whether its answer is right, [R].

    Returns:
        The effects, [J, J].

    Example:
        >>> scores = np.array([[2.0, 1.0], [0.0, 0.0], [-1.0, 1.0], [0.0, 0.0]])
        >>> found = prompt_effects(scores @ scores.T, [0.5, -0.5, 0.5, -0.5], [0, 0, 1, 1], [True, False, True, False])
        >>> found.effect.tolist()  # each prompt undoes a part of what the other does for itself
        [[2.5, -0.5], [-0.5, 1.0]]
    """
    matrix = checked_gram(gram)
    of_group = np.equal.outer(np.arange(int(np.max(groups)) + 1), np.asarray(groups)).astype(np.float64)
    pulling = of_group * np.asarray(weights, dtype=np.float64)
    right = of_group * np.asarray(is_correct, dtype=np.float64)
    num_right = right.sum(axis=1, keepdims=True)
    right /= np.maximum(num_right, 1.0)
    lengths = [np.sqrt(np.clip(np.diag(side @ matrix @ side.T), 0.0, None)) for side in (pulling, right)]
    effect = pulling @ matrix @ right.T
    scale = np.outer(*lengths)
    cosine = np.divide(effect, scale, out=np.zeros_like(effect), where=scale > 0)
    return PromptEffects(
        effect=effect, cosine=np.clip(cosine, -1.0, 1.0), pulls=lengths[0] > 0, is_solved=num_right[:, 0] > 0
    )


def _without_each(pairs: Array, kept: NDArray[np.bool_]) -> Array:
    """The sum over all pairs of different groups, and without those of each group that is kept, [1 + kept]."""
    leaving = (pairs.sum(axis=0) + pairs.sum(axis=1))[kept]
    return np.asarray(pairs.sum() - np.concatenate([[0.0], leaving]))


def _too_few(num: int) -> Estimate:
    return Estimate.undefined_because(f"{num} groups with a gradient or a correct answer are too few", num_units=num)

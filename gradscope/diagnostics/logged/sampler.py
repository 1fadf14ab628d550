"""Logged log-probabilities of sampler and trainer beside each other: the whole log, each step, the worst tokens.

Legend: N tokens, S sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradscope.diagnostics.logged.gathered import gathered
from gradscope.diagnostics.logged.step_tokens import StepTokens, step_tokens
from gradscope.metrics.sampler.mismatch import mismatch_estimates
from gradscope.metrics.sampler.sequence_sums import SequenceSums, joined_sums, sequence_sums
from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.results.logged.mismatch import MismatchNumbers, SamplerMismatch, TokenMismatch
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

NUM_WORST = 10
"""Tokens that are named."""


def sampler_mismatch(run: Run, resampling: Resampling) -> SamplerMismatch:
    """All that both log-probabilities of a log say."""
    return gathered(GatheredMismatch(), run, resampling)


class GatheredMismatch:
    """Sums over the sequences of each step; a step's tokens are let go of once they are summed."""

    def __init__(self) -> None:
        self._set_aside: Counter[str] = Counter()
        self._steps: list[tuple[int, SequenceSums, tuple[str, ...]]] = []
        self._worst: list[TokenMismatch] = []

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""
        tokens = step_tokens(groups, self._set_aside)
        if not len(tokens.lengths):
            return
        sums = sequence_sums(tokens.log_ratios, tokens.lengths, tokens.advantages)
        self._steps.append((step, sums, tokens.prompts))
        self._worst = sorted([*self._worst, *_worst(step, tokens)], key=_distance, reverse=True)[:NUM_WORST]

    def result(self, _: Run, resampling: Resampling) -> SamplerMismatch:
        """The whole log, each step and the worst tokens."""
        if not self._steps:
            return SamplerMismatch(set_aside=dict(self._set_aside))
        joined = joined_sums([sums for _, sums, _ in self._steps])
        prompts = [prompt for *_, of_step in self._steps for prompt in of_step]
        return SamplerMismatch(
            overall=_numbers(None, joined, prompts, resampling),
            by_step=tuple(_numbers(step, sums, of_step, resampling) for step, sums, of_step in self._steps),
            worst=tuple(token for token in self._worst if token.sampler != token.trainer),
            set_aside=dict(self._set_aside),
            is_identical=not joined.distance.any(),
        )


def _numbers(step: int | None, sums: SequenceSums, prompts: Sequence[str], resampling: Resampling) -> MismatchNumbers:
    return MismatchNumbers(
        step=step,
        num_tokens=int(sums.num_tokens.sum()),
        num_sequences=len(sums.num_tokens),
        **mismatch_estimates(sums, prompts, resampling=resampling),
    )


def _worst(step: int, tokens: StepTokens) -> list[TokenMismatch]:
    """The tokens of a step on which both differ most, the largest difference first."""
    distance = np.abs(tokens.log_ratios)
    places = _largest(distance, NUM_WORST)
    sequences = np.searchsorted(np.cumsum(tokens.lengths), places, side="right")
    return [
        TokenMismatch(
            step=step,
            row=tokens.rollouts[sequence].row,
            sequence=tokens.sequences[sequence],
            position=int(tokens.positions[place]),
            sampler=float(tokens.sampler[place]),
            trainer=float(tokens.trainer[place]),
        )
        for place, sequence in zip(places, sequences, strict=True)
    ]


def _largest(values: ArrayLike, most: int) -> NDArray[np.int64]:
    """The places of the largest values without sorting all of them, the largest first and the first of equal ones."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) > most:
        least = np.partition(numbers, len(numbers) - most)[len(numbers) - most]
        places = np.flatnonzero(numbers > least)
        places = np.concatenate([places, np.flatnonzero(numbers == least)[: most - len(places)]])
    else:
        places = np.arange(len(numbers))
    return np.asarray(places[np.lexsort((places, -numbers[places]))], dtype=np.int64)


def _distance(token: TokenMismatch) -> float:
    return abs(token.trainer - token.sampler)

"""The tokens of a step that have both log-probabilities, in flat arrays; rows that lack one are counted by reason.

Legend: N tokens of S sequences. A rollout of several adds its prompt once a sequence, as prompts are the unit of
resampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.types import Rollout, RolloutGroup

Array = NDArray[np.float64]
Columns = tuple[Array, Array, Array, NDArray[np.int64]]

NO_SAMPLER = "no log-probabilities of the sampler"
NO_TRAINER = "no log-probabilities of the trainer"
OTHER_LENGTH = "log-probabilities of another number of tokens"
NOT_FINITE = "a log-probability that is missing, NaN or infinite"
NO_LOGPROB = "a number that is no log-probability"
PLACEHOLDERS = "zeros in place of log-probabilities"

_HIGHEST = 0.25
"""A log-probability is at most 0; kernels in bfloat16 round it to a little more."""
_LOWEST = -1e4
"""What a softmax in float32 can give; less is what masked logits leave."""
_NOTHING: Columns = (np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """What was sampled at one step and counts in the loss."""

    sampler: Array
    """The sampler's log-probabilities, [N]."""
    trainer: Array
    """The trainer's, [N]."""
    advantages: Array
    """NaN where they are not known, [N]."""
    positions: NDArray[np.int64]
    """Places in the completion, [N]."""
    lengths: NDArray[np.int64]
    """Tokens of each sequence, at least one, [S]."""
    rollouts: tuple[Rollout, ...]
    """Each sequence as a rollout of its own, [S]."""
    sequences: tuple[int, ...]
    """Which of its rollout's sequences each is, from 0, [S]."""
    prompts: tuple[str, ...]
    """Its prompt, [S]."""

    @property
    def log_ratios(self) -> Array:
        """Log p_trainer - log p_sampler, [N]."""
        return np.asarray(self.trainer - self.sampler)


def counts_in_loss(rollout: Rollout) -> bool:
    """Whether any of its tokens is known to count, or all do."""
    return rollout.mask is None or any(rollout.mask) or any(any(tokens.mask) for tokens in rollout.earlier)


def step_tokens(groups: Sequence[RolloutGroup], set_aside: Counter[str]) -> StepTokens:
    """The tokens of a step.

    Args:
        groups: The groups of the step.
        set_aside: Counts the rows that lack something, by reason.

    Returns:
        The tokens of all other rows; none of rows no token of which counts in the loss, and none at all where one side
        holds nothing but zeros.
    """
    kept: list[tuple[RolloutGroup, int, Rollout]] = []
    columns: list[Columns] = []
    for group in groups:
        for at, one in (pair for rollout in group.rollouts for pair in enumerate(rollout.sequences)):
            if not counts_in_loss(one):
                continue
            found = _columns(one)
            if isinstance(found, str):
                set_aside[found] += 1
            else:
                kept.append((group, at, one))
                columns.append(found)
    sampler, trainer, advantages, positions = map(np.concatenate, zip(_NOTHING, *columns, strict=True))
    if sampler.any() != trainer.any():  # as NeMo-RL writes where it takes the ratio for 1
        set_aside[PLACEHOLDERS] += len(columns)
        return step_tokens((), set_aside)
    return StepTokens(
        sampler=sampler,
        trainer=trainer,
        advantages=advantages,
        positions=positions,
        lengths=np.array([len(column[0]) for column in columns], dtype=np.int64),
        rollouts=tuple(one for *_, one in kept),
        sequences=tuple(at for _, at, _ in kept),
        prompts=tuple(group.prompt_id for group, *_ in kept),
    )


def _columns(rollout: Rollout) -> Columns | str:
    """Sampler, trainer, advantages and positions of the tokens that count, or why they cannot be compared."""
    if rollout.logprobs is None or rollout.trainer_logprobs is None:
        return NO_SAMPLER if rollout.logprobs is None else NO_TRAINER
    length = len(rollout.logprobs)
    if not length or any(
        values is not None and len(values) != length for values in (rollout.trainer_logprobs, rollout.mask)
    ):
        return OTHER_LENGTH
    counts = np.ones(length, dtype=bool) if rollout.mask is None else np.array(rollout.mask, dtype=bool)
    sampler, trainer = (
        np.array(values, dtype=np.float64)[counts] for values in (rollout.logprobs, rollout.trainer_logprobs)
    )
    both = np.concatenate([sampler, trainer])
    if not np.all(np.isfinite(both)):
        return NOT_FINITE
    if both.max() > _HIGHEST or both.min() < _LOWEST:
        return NO_LOGPROB
    advantages = np.full(length, np.nan if rollout.advantage is None else rollout.advantage)
    if rollout.token_advantages is not None and len(rollout.token_advantages) == length:
        advantages = np.array(rollout.token_advantages, dtype=np.float64)
    return sampler, trainer, advantages[counts], np.flatnonzero(counts)

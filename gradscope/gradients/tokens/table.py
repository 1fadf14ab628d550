"""The tokens of each group that are rows, and what the trainer multiplies their grad log pi by.

Shapes: N token rows, R rollouts of the step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Channel, Row, RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.rows import TokenRow, sample_tokens
from gradscope.metrics.gram.spectrum import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The token rows of one group."""

    step: int
    """The trainer's step."""
    group_id: str
    """The group."""
    rows: tuple[TokenRow, ...]
    """The tokens, [N]."""
    score_weights: Array
    """The trainer's weight of each token, importance ratio included and advantage not, [N]."""
    logged_weights: Array | None
    """The whole weight of each token in the reward part of the gradient that the optimizer saw: per-token advantages,
    ratio and clip included, [N]; None where no advantages were logged."""
    num_tokens: int
    """Tokens of the group that count in the loss; more than N where they were sampled."""

    @property
    def rollouts(self) -> NDArray[np.intp]:
        """Which rollout of the step each token belongs to, [N]."""
        return np.array([row.sequence for row in self.rows])

    @property
    def positions(self) -> NDArray[np.intp]:
        """Each token's place in its completion, [N]."""
        return np.array([row.position for row in self.rows])


def token_tables(
    prepared: PreparedStep,
    step: StepGram,
    *,
    most: int | None,
    seed: int,
    rollouts: Collection[int] | None,
) -> Iterator[TokenTable]:
    """The tokens of each group that count in the loss, or a random part of them.

    Args:
        step: The step's Gram matrix, for the log-probabilities.
        most: Tokens of a group; of more, as many are drawn, each equally likely. None: all.
        rollouts: Rollouts of the step whose tokens are wanted; None: all.

    Yields:
        One table per group; none for a group of which no token counts.
    """
    plan = prepared.plan
    score, logged = _weights(plan, step, "score"), None
    if all(advantages is not None for advantages in plan.advantages):
        logged = _weights(plan, step, "logged")
    first = 0
    for number, group in enumerate(prepared.groups):
        members = range(first, first + len(group.rollouts))
        first = members.stop
        candidates = [
            TokenRow(sequence=sequence, position=position)
            for sequence in members
            if rollouts is None or sequence in rollouts
            for position in np.flatnonzero(plan.weights[sequence].numpy()).tolist()
        ]
        if not candidates:
            continue
        rows = sample_tokens(candidates, most or len(candidates), (seed, step.step, number))
        yield TokenTable(
            step=step.step,
            group_id=group.group_id,
            rows=rows,
            score_weights=np.array([score[row.sequence][row.position] for row in rows]),
            logged_weights=None if logged is None else np.array([logged[row.sequence][row.position] for row in rows]),
            num_tokens=len(candidates),
        )


def _weights(plan: RowPlan, step: StepGram, channel: Channel) -> list[Array]:
    """What multiplies each token's grad log pi in a rollout's row, [R][T]."""
    return [
        plan.cotangent(Row(sequence=sequence, channel=channel), torch.tensor(logprobs)).double().numpy()
        for sequence, logprobs in enumerate(step.logprobs)
    ]

"""Rows of single tokens: which of them, and which share a forward pass.

Shapes: N token rows, C rows of a chunk, T tokens of a completion, R rollouts of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn

from gradscope.gradients.model.batches import TokenSequence, pad_batch
from gradscope.gradients.model.passes import add_gradients, completion_logprobs, gradients_on, row_buffers
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Channel, Row, RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.metrics.gram.spectrum import Array

CHUNK = 32  # tokens that share a forward pass; each pays for the positions up to the chunk's last


class TokenRow(Struct, frozen=True, kw_only=True):
    """One row: the gradient of the log-probability of one sampled token."""

    sequence: int
    position: int  # its position in the completion, from 0


class Chunk(Struct, frozen=True, kw_only=True):
    """Rows of one sequence that go down one graph."""

    rows: tuple[int, ...]  # their indices among all rows, [C]
    positions: tuple[int, ...]  # their positions in the completion, ascending, [C]
    sequence: int
    prefix: TokenSequence  # the sequence up to the last of them


def _sample_tokens(candidates: Sequence[TokenRow], max_tokens: int, seed: int | Sequence[int]) -> tuple[TokenRow, ...]:
    """Tokens drawn without replacement, each equally likely, in their order; all where there are no more.

    Raises:
        ValueError: No token was asked for.

    >>> rows = [TokenRow(sequence=0, position=position) for position in range(5)]
    >>> [row.position for row in _sample_tokens(rows, 3, seed=0)]
    [2, 3, 4]
    """
    if max_tokens < 1:
        raise ValueError(f"at least one token is needed, got {max_tokens}")
    if len(candidates) <= max_tokens:
        return tuple(candidates)
    chosen = np.random.default_rng(seed).choice(len(candidates), size=max_tokens, replace=False)
    return tuple(candidates[index] for index in sorted(chosen))


def chunks_of(rows: Sequence[TokenRow], sequences: Sequence[TokenSequence], size: int = CHUNK) -> list[Chunk]:
    """Rows in chunks of at most ``size`` neighbors of one sequence, every row in one chunk."""
    by_sequence: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(rows)), key=lambda index: rows[index].position):
        by_sequence[rows[index].sequence].append(index)
    chunks = []
    for index, members in sorted(by_sequence.items()):
        for first in range(0, len(members), size):
            chunk_rows, sequence = tuple(members[first : first + size]), sequences[index]
            positions = tuple(rows[member].position for member in chunk_rows)
            end = positions[-1] + 1
            prefix = replace(sequence, completion_ids=sequence.completion_ids[:end], mask=sequence.mask[:end])
            chunks.append(Chunk(rows=chunk_rows, positions=positions, sequence=index, prefix=prefix))
    return chunks


# Token rows by one ordinary backward pass each: exact for any architecture and kernel, slow.
#
# It serves the parameters that no layer rule covers, and checks a few rows of every Gram matrix of tokens.
def token_loop_rows(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    chunks: Sequence[Chunk],
    temperature: float,
    add: Callable[[torch.Tensor], None],
) -> None:
    """Every row, handed out parameter by parameter, [N, elements] each."""
    num_rows, parameters = sum(len(chunk.rows) for chunk in chunks), list(trainable.values())
    buffers = row_buffers(parameters, num_rows)
    with gradients_on(trainable, on=True):
        for chunk in chunks:
            batch = pad_batch([0], [chunk.prefix], parameters[0].device)
            (logprobs,) = completion_logprobs(model, batch, temperature, torch.float64)
            for row, position in zip(chunk.rows, chunk.positions, strict=True):
                add_gradients(buffers, row, logprobs[position], parameters, is_last=row == chunk.rows[-1])
    while buffers:
        add(buffers.pop(0))


class TokenTable(Struct, frozen=True, kw_only=True):
    """The token rows of one group."""

    group_id: str
    rows: tuple[TokenRow, ...]  # the tokens, [N]
    score_weights: Array  # the trainer's weight of each token, importance ratio included and advantage not, [N]
    logged_weights: Array | None
    """The total weight of each token in the reward part of the gradient that the optimizer saw: per-token advantages,
    ratio and clip included, [N]; None where no advantages were logged."""
    num_tokens: int  # tokens of the group that count in the loss; more than N where they were sampled

    @property
    def rollouts(self) -> NDArray[np.intp]:
        """Which rollout of the step each token belongs to, [N]."""
        return np.array([row.sequence for row in self.rows])

    @property
    def positions(self) -> NDArray[np.intp]:
        """Each token's position in its completion, [N]."""
        return np.array([row.position for row in self.rows])


def token_tables(
    prepared: PreparedStep, step: StepGram, *, max_tokens: int | None, seed: int, rollouts: Collection[int] | None
) -> Iterator[TokenTable]:
    """The tokens of each group that count in the loss, or a random part of them; nothing of a group without any.

    Args:
        step: The step's Gram matrix, for the log-probabilities.
        max_tokens: Tokens of a group; of more, as many are drawn, each equally likely. None: all.
        rollouts: Rollouts of the step whose tokens are wanted; None: all.
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
        rows = _sample_tokens(candidates, max_tokens or len(candidates), (seed, step.step, number))
        yield TokenTable(
            group_id=group.group_id,
            rows=rows,
            score_weights=np.array([score[row.sequence][row.position] for row in rows]),
            logged_weights=None if logged is None else np.array([logged[row.sequence][row.position] for row in rows]),
            num_tokens=len(candidates),
        )


def _weights(plan: RowPlan, step: StepGram, channel: Channel) -> list[Array]:
    """The factor on each token's grad log pi in a rollout's row, [R][T]."""
    return [
        plan.cotangent(Row(sequence=sequence, channel=channel), torch.tensor(logprobs)).double().numpy()
        for sequence, logprobs in enumerate(step.logprobs)
    ]

"""Rows of single tokens: which of them, and which share a forward pass.

Shapes: N token rows, C rows of a chunk, T tokens of a completion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradscope.gradients.model.token_sequence import TokenSequence

CHUNK = 32
"""Tokens that share a forward pass; each pays for the positions up to the chunk's last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One row: the gradient of the log-probability of one sampled token."""

    sequence: int
    """Index of its sequence."""
    position: int
    """Its place in the completion, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one sequence that go down one graph."""

    rows: tuple[int, ...]
    """Their indices among all rows, [C]."""
    positions: tuple[int, ...]
    """Their places in the completion, ascending, [C]."""
    sequence: int
    """Index of their sequence."""
    prefix: TokenSequence
    """The sequence up to the last of them."""


def sample_tokens(candidates: Sequence[TokenRow], most: int, seed: int | Sequence[int]) -> tuple[TokenRow, ...]:
    """Tokens drawn without replacement, each equally likely, in their order.

    Returns:
        All of them where there are no more than ``most``.

    Raises:
        ValueError: No token was asked for.

    Example:
        >>> rows = [TokenRow(sequence=0, position=position) for position in range(5)]
        >>> [row.position for row in sample_tokens(rows, 3, seed=0)]
        [2, 3, 4]
    """
    if most < 1:
        raise ValueError(f"at least one token is needed, got {most}")
    if len(candidates) <= most:
        return tuple(candidates)
    chosen = np.random.default_rng(seed).choice(len(candidates), size=most, replace=False)
    return tuple(candidates[index] for index in sorted(chosen))


def chunks_of(rows: Sequence[TokenRow], sequences: Sequence[TokenSequence], size: int = CHUNK) -> list[Chunk]:
    """Rows in chunks of at most ``size`` neighbors of one sequence, every row in one chunk."""
    of_sequence: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(rows)), key=lambda index: rows[index].position):
        of_sequence[rows[index].sequence].append(index)
    return [
        _chunk(members[first : first + size], rows, sequence, sequences[sequence])
        for sequence, members in sorted(of_sequence.items())
        for first in range(0, len(members), size)
    ]


def _chunk(members: Sequence[int], rows: Sequence[TokenRow], index: int, sequence: TokenSequence) -> Chunk:
    positions = tuple(rows[index].position for index in members)
    kept = positions[-1] + 1
    prefix = replace(sequence, completion_ids=sequence.completion_ids[:kept], mask=sequence.mask[:kept])
    return Chunk(rows=tuple(members), positions=positions, sequence=index, prefix=prefix)

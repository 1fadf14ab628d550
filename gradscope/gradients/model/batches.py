"""Batches of rows for one forward pass: sorted by length, cut by a token budget, padded on a chosen side.

Shapes: B rows of a batch, S padded length, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradscope.gradients.model.token_sequence import TokenSequence

PaddingSide = Literal["left", "right"]

MAX_BATCH_TOKENS = 4096
"""Padded tokens of one forward pass where nothing else is said; bounds activations."""
BATCH_COST = 128
"""Padded tokens that take a CPU as long as another batch does; for a model of 13.5 M parameters 60 to 70 were seen."""
LOGIT_BYTES = 2**29
"""Memory for one float32 copy of a batch's logits where nothing else is said; a backward pass holds a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Some rows of a step, padded to one length."""

    rows: tuple[int, ...]
    """Their indices among the step's rows, [B]."""
    input_ids: torch.Tensor
    """Token ids, [B, S]."""
    attention_mask: torch.Tensor
    """1 where there is a token, [B, S]."""
    position_ids: torch.Tensor | None
    """Positions counted from the first real token, [B, S]; None where the rows stand in the trainer's padding and the
    model counts by itself, as it did in training."""
    spans: tuple[tuple[int, int], ...]
    """First and last-plus-one position of each row's tokens, [B]."""
    num_completion: tuple[int, ...]
    """T of each row, [B]."""

    @property
    def length(self) -> int:
        """The padded length, S."""
        return int(self.input_ids.shape[1])


def default_batch_tokens(vocab_size: int) -> int:
    """Padded tokens of one forward pass where nothing else is said.

    Args:
        vocab_size: V; where logits are formed whole, a large vocabulary makes them the largest tensor of all. 0 where
            the output layer is taken in slices.

    Returns:
        The budget.

    Example:
        >>> default_batch_tokens(0), default_batch_tokens(8192), default_batch_tokens(151936)
        (4096, 4096, 883)
    """
    return min(MAX_BATCH_TOKENS, max(1, LOGIT_BYTES // (4 * max(1, vocab_size))))


def split_rows(lengths: Sequence[int], batch_tokens: int, batch_cost: int | None = None) -> list[tuple[int, ...]]:
    """Rows of similar length together, longest first, within a budget of padded tokens and with little padding.

    The longest come first so that a row that does not fit fails before any work is done.

    Args:
        lengths: Tokens of each row, [N].
        batch_tokens: Most padded tokens of a batch; one row alone may exceed it.
        batch_cost: Padded tokens that take as long as another batch does; None: as few batches as there can be.

    Returns:
        Row indices of each batch.

    Example:
        >>> split_rows([3, 9, 4, 8], batch_tokens=18)
        [(1, 3), (2, 0)]
        >>> split_rows([30, 100, 40, 90], batch_tokens=1000)
        [(1, 3, 2, 0)]
        >>> split_rows([30, 100, 40, 90], batch_tokens=1000, batch_cost=64)
        [(1, 3), (2, 0)]
    """
    cost = batch_tokens * len(lengths) + sum(lengths) if batch_cost is None else batch_cost
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    least, first = [0], [0]  # of the first rows: what their batches cost, and where the last of these starts
    for stop in range(1, len(order) + 1):
        totals: dict[int, int] = {}
        for start in reversed(range(stop)):
            padded = lengths[order[start]] * (stop - start)
            if padded > batch_tokens and totals:
                break
            totals[start] = least[start] + padded + cost
        first.append(min(totals, key=totals.__getitem__))
        least.append(totals[first[-1]])
    batches: list[tuple[int, ...]] = []
    stop = len(order)
    while stop:
        batches.append(tuple(order[first[stop] : stop]))
        stop = first[stop]
    return batches[::-1]


def pad_batch(
    rows: Sequence[int],
    sequences: Sequence[TokenSequence],
    device: torch.device,
    padding_side: PaddingSide = "right",
    length: int | None = None,
) -> PaddedBatch:
    """Sequences padded to one length.

    Args:
        rows: Index of each row within the step, [B].
        sequences: The sequence of each row, [B].
        padding_side: Where padding goes; results do not depend on it. Rows in a trainer's frame stay in it.
        length: The padded length, at least that of the longest sequence; None: as long as that one.

    Returns:
        The batch.
    """
    length, frame = length or max(sequence.length for sequence in sequences), sequences[0].frame
    ids = torch.full((len(rows), length), 0 if frame is None else frame.padding_id, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    spans = []
    for row, sequence in enumerate(sequences):
        start = sequence.start if frame or padding_side == "right" else length - sequence.length
        stop = start + sequence.num_tokens
        ids[row, start:stop] = torch.tensor(sequence.prompt_ids + sequence.completion_ids)
        mask[row, start:stop] = 1
        spans.append((start, stop))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return PaddedBatch(
        rows=tuple(rows),
        input_ids=ids.to(device, non_blocking=True),
        attention_mask=mask.to(device, non_blocking=True),
        position_ids=positions.to(device, non_blocking=True) if frame is None else None,
        spans=tuple(spans),
        num_completion=tuple(len(sequence.completion_ids) for sequence in sequences),
    )

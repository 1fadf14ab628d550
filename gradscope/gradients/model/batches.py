"""Batches of rows for one forward pass: sorted by length, cut by a token budget, padded on a chosen side.

Shapes: B rows of a batch, S padded length, T tokens of a completion, V vocabulary, R rollouts of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from msgspec import Struct
from msgspec.structs import replace

from gradscope.rollouts.run import TrainerSettings


class Frame(Struct, frozen=True, kw_only=True):
    """The padded row that a trainer put a sequence into, for models that see the padding around it."""

    prompt_width: int  # tokens of the padded prompt; the padding comes first
    completion_width: int  # tokens of the padded completion; the padding comes last
    padding_id: int  # the token that fills it

    @property
    def width(self) -> int:
        """Tokens of the row."""
        return self.prompt_width + self.completion_width


class TokenSequence(Struct, frozen=True, kw_only=True):
    """One rollout as the trainer's forward pass saw it."""

    group_id: str
    sample: int
    prompt_ids: tuple[int, ...]  # at least one token: the first completion token is predicted from it
    completion_ids: tuple[int, ...]  # the sampled tokens, end-of-sequence included, [T]
    mask: tuple[bool, ...]  # which completion tokens count in the loss, [T]
    inferred: bool
    """Whether the completion's ids were re-tokenized from its text, or a script's prompt's. TRL's prompts are not in
    doubt: it made them from the same text with the same tokenizer."""
    frame: Frame | None = None  # the trainer's padding; None where the model's output does not depend on it

    @property
    def length(self) -> int:
        """Tokens that a forward pass has to take: prompt and completion, with the padding that belongs to them."""
        return self.num_tokens if self.frame is None else self.frame.width

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def start(self) -> int:
        """Padding before the first token."""
        return 0 if self.frame is None else self.frame.prompt_width - len(self.prompt_ids)


MAX_BATCH_TOKENS = 4096  # default of the padded tokens of one forward pass; bounds activations
BATCH_COST = 128
"""Padded tokens that take a CPU as long as another batch does; for a model of 13.5 M parameters 60 to 70 were seen."""
LOGIT_BYTES = 2**29
"""Default memory for one float32 copy of a batch's logits; a backward pass holds a few."""


class PaddedBatch(Struct, frozen=True, kw_only=True):
    """Some rows of a step, padded to one length."""

    rows: tuple[int, ...]  # their indices among the step's rows, [B]
    input_ids: torch.Tensor  # token ids, [B, S]
    attention_mask: torch.Tensor  # 1 where there is a token, [B, S]
    position_ids: torch.Tensor | None
    """Positions counted from the first real token, [B, S]; None where the rows have the trainer's padding and the
    model counts by itself, as it did in training."""
    spans: tuple[tuple[int, int], ...]  # first and last-plus-one position of each row's tokens, [B]
    num_completion: tuple[int, ...]  # T of each row, [B]

    @property
    def length(self) -> int:
        """The padded length, S."""
        return int(self.input_ids.shape[1])


def default_batch_tokens(vocab_size: int) -> int:
    """The default of the padded tokens of one forward pass.

    Where all logits are formed, a large vocabulary makes them the largest tensor of all; 0 where they are in slices.

    >>> default_batch_tokens(0), default_batch_tokens(8192), default_batch_tokens(151936)
    (4096, 4096, 883)
    """
    return min(MAX_BATCH_TOKENS, max(1, LOGIT_BYTES // (4 * max(1, vocab_size))))


def split_rows(lengths: Sequence[int], batch_tokens: int, batch_cost: int | None = None) -> list[tuple[int, ...]]:
    """Rows of similar length together, longest first, within a budget of padded tokens and with little padding.

    The longest come first so that a row that does not fit fails before any work is done. With a ``batch_cost``, padded
    tokens that take as long as another batch does, batches may be more than needed; one row alone may exceed
    ``batch_tokens``.

    >>> split_rows([3, 9, 4, 8], batch_tokens=18)
    [(1, 3), (2, 0)]
    >>> split_rows([30, 100, 40, 90], batch_tokens=1000)
    [(1, 3, 2, 0)]
    >>> split_rows([30, 100, 40, 90], batch_tokens=1000, batch_cost=64)
    [(1, 3), (2, 0)]
    """
    cost = batch_tokens * len(lengths) + sum(lengths) if batch_cost is None else batch_cost
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    costs, starts = [0], [0]  # of the first rows: the cost of their batches, and where the last of these starts
    for stop in range(1, len(order) + 1):
        totals: dict[int, int] = {}
        for start in reversed(range(stop)):
            padded = lengths[order[start]] * (stop - start)
            if padded > batch_tokens and totals:
                break
            totals[start] = costs[start] + padded + cost
        starts.append(min(totals, key=totals.__getitem__))
        costs.append(totals[starts[-1]])
    batches: list[tuple[int, ...]] = []
    stop = len(order)
    while stop:
        batches.append(tuple(order[starts[stop] : stop]))
        stop = starts[stop]
    return batches[::-1]


def pad_batch(
    rows: Sequence[int], sequences: Sequence[TokenSequence], device: torch.device, length: int | None = None
) -> PaddedBatch:
    """Sequences, [B], padded on the right to one length, at least that of the longest.

    Rows in a trainer's frame stay in it. ``rows`` are their indices within the step.
    """
    length, frame = length or max(sequence.length for sequence in sequences), sequences[0].frame
    ids = torch.full((len(rows), length), 0 if frame is None else frame.padding_id, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    spans = []
    for row, sequence in enumerate(sequences):
        start, stop = sequence.start, sequence.start + sequence.num_tokens
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


class TrainerPadding(Struct, frozen=True, kw_only=True):
    """The settings that decide the width of a padded row."""

    num_processes: int = 1  # each pads its own slice of the batch
    multiple: int = 1  # widths are rounded up to a multiple of it (``pad_to_multiple_of``)

    @classmethod
    def from_settings(cls, settings: TrainerSettings) -> TrainerPadding:
        """The padding of a trainer's arguments; one process where they do not determine it."""
        rows, per_device = settings.get("generation_batch_size"), settings.get("per_device_train_batch_size")
        steps = settings.get("steps_per_generation", settings.get("gradient_accumulation_steps"))
        has_sizes = all(isinstance(value, int) and value > 0 for value in (rows, per_device, steps))
        return cls(
            num_processes=max(1, rows // (per_device * steps)) if has_sizes else 1,
            multiple=int(settings.get("pad_to_multiple_of", 1)),
        )

    def framed(self, sequences: Sequence[TokenSequence], padding_id: int) -> tuple[TokenSequence, ...]:
        """The sequences of a step, [R], each in the row that its process padded it into."""
        per_process = -(-len(sequences) // self.num_processes)
        framed: list[TokenSequence] = []
        for start in range(0, len(sequences), per_process):
            part = sequences[start : start + per_process]
            frame = Frame(
                prompt_width=self._width(len(sequence.prompt_ids) for sequence in part),
                completion_width=self._width(len(sequence.completion_ids) for sequence in part),
                padding_id=padding_id,
            )
            framed += [replace(sequence, frame=frame) for sequence in part]
        return tuple(framed)

    def _width(self, lengths: Iterable[int]) -> int:
        return -(-max(lengths) // self.multiple) * self.multiple

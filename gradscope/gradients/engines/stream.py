"""Engine ``stream``: one forward and backward per batch with weight gradients off; memory independent of P.

One batch: a layer's per-row gradients are formed in slices, added to the Gram and dropped as soon as its last output
gradient arrives. Several batches: (input, output gradient) pairs wait on the CPU, unpadded, until all batches are in
(beyond a budget of memory, on disk); then layers are combined one by one, so rows of different batches meet. What the
disk has no room for takes another round, in which all batches run again.

Shapes: N rows, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.engines.pending_parts import PendingParts
from gradscope.gradients.engines.spill import KEPT_BYTES
from gradscope.gradients.layers.capture import Capture, Sink
from gradscope.gradients.layers.factors import GradientFactor
from gradscope.gradients.model.backward import backpropagate, gradients_on
from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.forward import Past, completion_logprobs
from gradscope.gradients.plan.rows import RowPlan

OnSequence = Callable[[int, torch.Tensor], None]
"""Called with a sequence's index and the log-probabilities of its completion, [T]."""
OnRounds = Callable[[int], None]
"""Called once the first batch of a round is in, with the number of rounds to come, this one among them."""


def stream_gram(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    plan: RowPlan,
    batches: Sequence[PaddedBatch],
    accumulator: GramAccumulator,
    on_sequence: OnSequence,
    *,
    max_kept_bytes: int = KEPT_BYTES,
    recompute: bool = False,
    on_rounds: OnRounds = lambda _: None,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers.

    Args:
        on_sequence: Called in every round.
        max_kept_bytes: Memory for what waits for other batches; more of it goes to a temporary file, of which each
            round takes at most half of what is free.
        recompute: Whether decoder layers run again in the backward pass instead of keeping their activations.
        on_rounds: Told in each round how many are to come.

    Returns:
        Names of the parameters that no rule covers; nothing was added for them.
    """
    slow: set[str] = set()
    left, waits = trainable, len(batches) > 1
    while left:
        capture = Capture(model, left, recompute=recompute)
        with PendingParts(left, accumulator, waits=waits, max_kept_bytes=max_kept_bytes) as pending:
            for number, batch in enumerate(batches):

                def take(name: str, factors: list[GradientFactor], rows: tuple[int, ...] = batch.rows) -> None:
                    pending.take(name, rows, factors)
                    if not waits:
                        pending.combine(name)

                pending.make_room()
                with gradients_on(trainable, on=False):
                    capture_batch(model, plan, batch, capture, take, on_sequence)
                if number == 0:
                    shares = share_of_first([batch.rows for batch in batches], plan)
                    on_rounds(pending.leave_what_does_not_fit(*shares))
            pending.combine_all(capture.uncovered)
        slow |= capture.uncovered
        left = {name: part for name, part in pending.left.items() if name not in slow}
    return frozenset(slow)


def share_of_first(batches: Sequence[Sequence[int]], plan: RowPlan) -> tuple[float, float]:
    """Tokens, and rows, of all batches over those of the first; a batch is the indices of its rows."""
    lengths = [sum(plan.lengths[row] for row in rows) for rows in batches]
    return sum(lengths) / lengths[0], sum(map(len, batches)) / len(batches[0])


def capture_batch(
    model: Any,
    plan: RowPlan,
    batch: PaddedBatch,
    capture: Capture,
    sink: Sink,
    on_sequence: OnSequence,
    past: Past | None = None,
) -> None:
    """One forward and backward pass of a batch, handed out parameter by parameter; weight gradients must be off.

    Args:
        capture: Takes what its layers are given and get back.
        sink: Gets the factors of each complete parameter.
        past: What ran before the batch; None where it holds whole sequences.
    """
    rows = [plan.rows[index] for index in batch.rows]
    with capture.hooks(), capture.batch(batch, sink):
        outputs = completion_logprobs(
            model,
            batch,
            plan.objective.temperature,
            past=past,
            entropies=plan.has_entropies,
            watch=capture.watch,
        )
        weights = [plan.cotangent(row, each.detach()) for row, each in zip(rows, outputs, strict=True)]
        if any(row.requires_grad for row in outputs):  # nothing does where no layer has a rule
            backpropagate(outputs, weights)
    for row, each in zip(rows, outputs, strict=True):
        if row.channel == "score":
            on_sequence(row.sequence, plan.logprobs(row.sequence, each.detach()))

"""Engine ``stream``: one forward and backward per batch with weight gradients off; memory independent of P.

One batch: a layer's per-row gradients are formed in slices, added to the Gram and dropped as soon as its last output
gradient arrives. Several batches: (input, output gradient) pairs wait on the CPU, unpadded, until all batches are in
(beyond a budget of memory, on disk); then layers are combined one by one, so rows of different batches meet.

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
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers.

    Args:
        max_kept_bytes: Memory for what waits for other batches; more of it goes to a temporary file.
        recompute: Whether decoder layers run again in the backward pass instead of keeping their activations.

    Returns:
        Names of the parameters that no rule covers; nothing was added for them.
    """
    capture, waits = Capture(model, trainable, recompute=recompute), len(batches) > 1
    with PendingParts(trainable, accumulator, waits=waits, max_kept_bytes=max_kept_bytes) as pending:
        for batch in batches:

            def take(name: str, factors: list[GradientFactor], rows: tuple[int, ...] = batch.rows) -> None:
                pending.take(name, rows, factors)
                if not waits:
                    pending.combine(name)

            with gradients_on(trainable, on=False):
                capture_batch(model, plan, batch, capture, take, on_sequence)
        pending.combine_all(capture.uncovered)
    return frozenset(capture.uncovered)


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

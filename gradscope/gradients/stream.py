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

from gradscope.gradients.backward import backpropagate, gradients_on
from gradscope.gradients.batches import Batch
from gradscope.gradients.capture import Capture
from gradscope.gradients.contributions import Contribution
from gradscope.gradients.forward import completion_logprobs
from gradscope.gradients.gram import GramAccumulator
from gradscope.gradients.rows import RowPlan
from gradscope.gradients.spill import KEPT_BYTES, PartStore


def stream_gram(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    plan: RowPlan,
    batches: Sequence[Batch],
    accumulator: GramAccumulator,
    on_sequence: Callable[[int, torch.Tensor], None],
    *,
    max_kept_bytes: int = KEPT_BYTES,
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers.

    Args:
        model: The model.
        trainable: Name -> parameter.
        plan: The rows.
        batches: All rows, each in one batch.
        accumulator: Gets the products.
        on_sequence: Called with each sequence's index and its log-probabilities.
        max_kept_bytes: Memory for what waits for other batches; more of it goes to a temporary file.

    Returns:
        Names of the parameters that no rule covers; nothing was added for them.
    """
    capture = Capture(model, trainable)
    with PartStore(max_kept_bytes) as store:
        for batch in batches:
            sink = _combine_now(trainable, batch, accumulator) if len(batches) == 1 else _keep(store, batch)
            with capture.hooks(), capture.batch(batch, sink), gradients_on(trainable, on=False):
                logprobs = completion_logprobs(model, batch, plan.objective.temperature)
                rows = [plan.rows[number] for number in batch.rows]
                weights = [plan.cotangent(row, logp.detach()) for row, logp in zip(rows, logprobs, strict=True)]
                if any(row.requires_grad for row in logprobs):  # nothing does where no layer has a rule
                    backpropagate(logprobs, weights)
            for row, logp in zip(rows, logprobs, strict=True):
                if row.channel == "score":
                    on_sequence(row.sequence, logp.detach())
        for name in [name for name in store.names if name not in capture.uncovered]:
            parts = store.take(name, accumulator.gram.device)
            accumulator.add_parameter(trainable[name].shape, trainable[name].dtype, parts)
    return frozenset(capture.uncovered)


def _combine_now(
    trainable: Mapping[str, nn.Parameter], batch: Batch, accumulator: GramAccumulator
) -> Callable[[str, list[Contribution]], None]:
    def combine(name: str, uses: list[Contribution]) -> None:
        accumulator.add_parameter(trainable[name].shape, trainable[name].dtype, [(batch.rows, uses)])

    return combine


def _keep(store: PartStore, batch: Batch) -> Callable[[str, list[Contribution]], None]:
    def keep(name: str, uses: list[Contribution]) -> None:
        store.keep(name, batch.rows, uses)

    return keep

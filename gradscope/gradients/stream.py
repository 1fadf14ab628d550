"""Engine ``stream``: one forward and backward per batch with weight gradients off; memory independent of P.

One batch: a layer's per-row gradients are formed in slices, added to the Gram and dropped as soon as its last output
gradient arrives. Several batches: (input, output gradient) pairs wait on the CPU, unpadded, until all batches are in;
then layers are combined one by one, so rows of different batches meet.

Shapes: N rows, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
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

Part = tuple[tuple[int, ...], list[Contribution]]


def stream_gram(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    plan: RowPlan,
    batches: Sequence[Batch],
    accumulator: GramAccumulator,
    on_sequence: Callable[[int, torch.Tensor], None],
) -> frozenset[str]:
    """Add the Gram of all parameters that a layer rule covers.

    Args:
        model: The model.
        trainable: Name -> parameter.
        plan: The rows.
        batches: All rows, each in one batch.
        accumulator: Gets the products.
        on_sequence: Called with each sequence's index and its log-probabilities.

    Returns:
        Names of the parameters that no rule covers; nothing was added for them.
    """
    capture = Capture(model, trainable)
    store: dict[str, list[Part]] = defaultdict(list)
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
    for name in [name for name in store if name not in capture.uncovered]:
        parts = [(rows, [use.to(accumulator.gram.device) for use in uses]) for rows, uses in store.pop(name)]
        accumulator.add_parameter(trainable[name].shape, trainable[name].dtype, parts)
    return frozenset(capture.uncovered)


def _combine_now(
    trainable: Mapping[str, nn.Parameter], batch: Batch, accumulator: GramAccumulator
) -> Callable[[str, list[Contribution]], None]:
    def combine(name: str, uses: list[Contribution]) -> None:
        accumulator.add_parameter(trainable[name].shape, trainable[name].dtype, [(batch.rows, uses)])

    return combine


def _keep(store: dict[str, list[Part]], batch: Batch) -> Callable[[str, list[Contribution]], None]:
    def keep(name: str, uses: list[Contribution]) -> None:
        store[name].append((batch.rows, [use.to(torch.device("cpu")) for use in uses]))

    return keep

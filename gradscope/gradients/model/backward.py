"""One ordinary backward pass: the gradient of a weighted sum of log-probabilities, handed out tensor by tensor.

The engine is checked against this, and everything that needs a gradient rather than a Gram is computed by it.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.processes.sharding import put_together

Weigh = Callable[[int, torch.Tensor], torch.Tensor]
"""From a position within the batch and its detached outputs, log-probabilities [T], to as many weights."""
_PART = 2**20
"""Elements that are copied into float64 at one time: a whole table of embeddings would take gigabytes."""


@contextmanager
def gradients_on(trainable: Mapping[str, nn.Parameter], *, on: bool) -> Iterator[None]:
    """Switch weight gradients on or off for a while."""
    before = {name: parameter.requires_grad for name, parameter in trainable.items()}
    try:
        for parameter in trainable.values():
            parameter.requires_grad_(on)
        yield
    finally:
        for name, parameter in trainable.items():
            parameter.requires_grad_(before[name])


def backward(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    batch: PaddedBatch,
    temperature: float,
    weigh: Weigh,
    consume: Callable[[str, torch.Tensor], None],
    *,
    entropies: bool = False,
) -> None:
    """The gradient of sum_b sum_t v_bt log pi(token t of row b), with v held fixed.

    Each tensor's gradient is handed out as soon as it is complete and then dropped; where several processes hold parts
    of it, whole, once the pass is over. Gradients that the parameters hold already, of a model in training, are no part
    of it and stay as they are.

    Args:
        weigh: The weights v.
        consume: Called with each parameter's name and gradient; never for a parameter that has none.
        entropies: Whether the tokens' entropies are weighed too, behind their log-probabilities.
    """

    def hand_out(name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None, "the hook runs after accumulation"
        consume(name, parameter.grad)
        parameter.grad = None

    before = {name: parameter.grad for name, parameter in trainable.items()}
    for parameter in trainable.values():
        parameter.grad = None
    handles = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda tensor, name=name: hand_out(name, tensor)
        )
        for name, parameter in trainable.items()
        if not isinstance(parameter, DTensor)  # a tied weight's arrives in two pieces
    ]
    try:
        with gradients_on(trainable, on=True):
            outputs = completion_logprobs(model, batch, temperature, entropies=entropies)
            backpropagate(outputs, [weigh(position, row.detach()) for position, row in enumerate(outputs)])
        for name, parameter in trainable.items():
            if parameter.grad is not None:
                consume(name, put_together(parameter.grad))
                parameter.grad = None
    finally:
        for handle in handles:
            handle.remove()
        for name, parameter in trainable.items():
            parameter.grad = before[name]


def backpropagate(
    logprobs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor] = (),
    *,
    retain_graph: bool = False,
) -> None:
    """One backward pass from weighted log-probabilities, [B][T] each, and other terms of the loss, scalars."""
    parts = [(row * weight.to(row)).sum() for row, weight in zip(logprobs, weights, strict=True)]
    torch.stack([*parts, *others]).sum().backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def squared_norm(
    model: Any,
    trainable: Mapping[str, nn.Parameter],
    batch: PaddedBatch,
    temperature: float,
    weigh: Weigh,
    *,
    entropies: bool = False,
) -> float:
    """Squared norm of a batch's gradient over all trainable parameters, added up in float64."""
    # one number in place: many small tensors between large ones keep the C library from reusing their memory
    total = torch.zeros((), dtype=torch.float64, device=batch.input_ids.device)

    def add(_: str, grad: torch.Tensor) -> None:
        for part in torch.split(grad.flatten(), _PART):
            total.add_(part.double().square().sum())

    backward(model, trainable, batch, temperature, weigh, add, entropies=entropies)
    return float(total)

"""One forward pass: log-probabilities and entropies of completion tokens, at the trainer's temperature.

Shapes: B rows, S padded length, T tokens of a completion, V vocabulary, Q tokens that ran before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch.distributed.tensor import DTensor

from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.calls import forward_arguments, removed_later, without_checkpointing
from gradscope.gradients.model.head import Watch, observed_input, plain_head, sliced_outputs
from gradscope.gradients.model.sharding import end_of_pass, full_tensor


class Past(Struct, frozen=True, kw_only=True):
    """Tokens that ran before the batch and are the same for all of its rows."""

    cache: Any  # their keys and values, in the model's own kind of cache, expanded to B rows
    length: int  # Q


def completion_logprobs(
    model: Any,
    batch: PaddedBatch,
    temperature: float,
    softmax_dtype: torch.dtype = torch.float32,
    past: Past | None = None,
    *,
    entropies: bool = False,
    watch: Watch | None = None,
) -> list[torch.Tensor]:
    """Log pi of each completion token with its graph, [B][T], or [B][2 T] with entropies behind them.

    The output layer is computed in slices of the vocabulary where it can be, so that the logits of all tokens never
    exist; elsewhere the model forms them, from the last prompt token on where it can be asked to.

    Args:
        softmax_dtype: The least precision of the softmax. The gradient of a token of probability near 1 is 1 - pi, of
            which float32 logits keep few digits; they matter where that token is a row of its own.
        entropies: Whether each row's entropies follow its log-probabilities.
        watch: Called within the backward pass with the contribution to a sliced output layer's own parameters.
    """
    head = plain_head(model)
    if head is None:
        logits, per_row = _run(model, batch, past), []
        for row, ids in _predicting(logits, batch):
            scaled = row.to(torch.promote_types(logits.dtype, softmax_dtype)) / temperature  # [T, V]
            logs = scaled.gather(1, ids.unsqueeze(1)).squeeze(1) - torch.logsumexp(scaled, dim=1)
            if entropies:
                all_logs = torch.log_softmax(scaled, dim=1)
                logs = torch.cat([logs, -(all_logs.exp() * all_logs).sum(dim=1)])
            per_row.append(logs)
        return per_row
    lengths, sliced = list(batch.num_completion), []

    def take(hidden: torch.Tensor) -> None:
        rows = list(_predicting(hidden, batch))
        outputs = sliced_outputs(
            replace(head, temperature=temperature),
            torch.cat([states for states, _ in rows]),
            torch.cat([ids for _, ids in rows]).to(hidden.device),
            torch.promote_types(hidden.dtype, softmax_dtype),
            entropies=entropies,
            watch=watch,
        )
        sliced.append(outputs)

    with observed_input(head, take):
        column = _run(model, batch, past)
    ((logprobs, entropy),) = sliced
    logprobs = end_of_pass(logprobs, column)
    if not entropies:
        return list(torch.split(logprobs, lengths))
    return [torch.cat(pair) for pair in zip(torch.split(logprobs, lengths), torch.split(entropy, lengths), strict=True)]


def completion_entropies(model: Any, batch: PaddedBatch, temperature: float) -> list[torch.Tensor]:
    """Entropy of the policy where it sampled each completion token, in nats, [B][T]."""
    with torch.no_grad():
        outputs = completion_logprobs(model, batch, temperature, entropies=True)
    return [row[num:] for row, num in zip(outputs, batch.num_completion, strict=True)]


def _run(model: Any, batch: PaddedBatch, past: Past | None) -> torch.Tensor:
    """The logits of a batch, [B, at most S, V], aligned at its end: only those that predict something, if possible."""
    accepted = forward_arguments(model)
    arguments: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if "position_ids" in accepted and batch.position_ids is not None:
        arguments["position_ids"] = batch.position_ids
    if "logits_to_keep" in accepted:
        arguments["logits_to_keep"] = batch.length - min(_starts(batch))
    if "use_cache" in accepted:
        arguments["use_cache"] = False
    if past is not None:
        assert batch.position_ids is not None, "rows in a trainer's frame share no prompt"
        mask = batch.attention_mask
        arguments["attention_mask"] = torch.cat([mask.new_ones(len(mask), past.length), mask], dim=1)
        arguments["position_ids"] = batch.position_ids + past.length
        arguments.update(past_key_values=past.cache, use_cache=True)
    with without_checkpointing(model):
        logits: torch.Tensor = model(**arguments).logits
    return logits


def _predicting(outputs: torch.Tensor, batch: PaddedBatch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each row the values at the positions that predict its completion, [T, ...], and its tokens, [T]."""
    offset = batch.length - outputs.shape[1]
    # Rows are unbound first: indexing them one by one would cost a gradient of the entire batch per row.
    for row, ids, start, num in zip(
        outputs.unbind(0), batch.input_ids, _starts(batch), batch.num_completion, strict=True
    ):
        yield row[start - offset : start - offset + num], ids[start + 1 : start + 1 + num]


def _starts(batch: PaddedBatch) -> list[int]:
    """Position of each row's last prompt token."""
    return [stop - num - 1 for (_, stop), num in zip(batch.spans, batch.num_completion, strict=True)]


# One ordinary backward pass: the gradient of a weighted sum of log-probabilities, handed out tensor by tensor.
#
# The engine is checked against this, and everything that needs a gradient rather than a Gram is computed by it.
Weigh = Callable[[int, torch.Tensor], torch.Tensor]
"""From a position within the batch and its detached outputs, log-probabilities [T], to their weights [T]."""
_PART, _CUDA_PART = 2**20, 2**26
"""Elements that are copied into float64 at one time: a full table of embeddings would take gigabytes."""


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


@contextmanager
def own_gradients(trainable: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Gradients on and empty; those of a model in training are restored after it."""
    before = {name: parameter.grad for name, parameter in trainable.items()}
    try:
        for parameter in trainable.values():
            parameter.grad = None
        with gradients_on(trainable, on=True):
            yield
    finally:
        for name, parameter in trainable.items():
            parameter.grad = before[name]


def row_buffers(parameters: Iterable[nn.Parameter], num_rows: int) -> list[torch.Tensor]:
    """Room for the gradients of all rows by each parameter, in float32 at least, [N, elements] each."""
    return [
        torch.zeros(num_rows, p.numel(), dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)
        for p in parameters
    ]


def add_gradients(
    buffers: Sequence[torch.Tensor],
    index: int,
    outputs: torch.Tensor,
    parameters: Sequence[nn.Parameter],
    weights: torch.Tensor | None = None,
    *,
    is_last: bool,
) -> None:
    """Add the gradient of weighted outputs to one row of each parameter's buffer; the last drops the graph."""
    grads = torch.autograd.grad(outputs, parameters, weights, retain_graph=not is_last, allow_unused=True)
    for rows, grad in zip(buffers, grads, strict=True):
        if grad is not None:
            rows[index] += grad.detach().reshape(rows[index].shape)


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
    of it, gathered, once the pass is over. Gradients that the parameters hold already, of a model in training, are no
    part of it and stay as they are.

    ``consume`` is called with each parameter's name and gradient, never for a parameter that has none. With
    ``entropies`` the tokens' entropies are weighed too, behind their log-probabilities.
    """

    def hand_out(name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None, "the hook runs after accumulation"
        consume(name, parameter.grad)
        parameter.grad = None

    handles = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda tensor, name=name: hand_out(name, tensor)
        )
        for name, parameter in trainable.items()
        if not isinstance(parameter, DTensor)  # a tied weight's arrives in two pieces
    ]
    with removed_later(handles), own_gradients(trainable):
        outputs = completion_logprobs(model, batch, temperature, entropies=entropies)
        backpropagate(outputs, [weigh(position, row.detach()) for position, row in enumerate(outputs)])
        for name, parameter in trainable.items():
            if parameter.grad is not None:
                consume(name, full_tensor(parameter.grad))
                parameter.grad = None


def backpropagate(
    logprobs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    extra_losses: Sequence[torch.Tensor] = (),
    *,
    retain_graph: bool = False,
) -> None:
    """One backward pass from weighted log-probabilities, [B][T] each, and other terms of the loss, scalars."""
    parts = [(row * weight.to(row)).sum() for row, weight in zip(logprobs, weights, strict=True)]
    torch.stack([*parts, *extra_losses]).sum().backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def sum_of_squares(tensor: torch.Tensor) -> torch.Tensor:
    """Added up in float64, a number on the tensor's device."""
    # one number, updated in place: many small tensors between large ones keep the C library from reusing their memory
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for part in torch.split(tensor.flatten(), _CUDA_PART if tensor.is_cuda else _PART):
        total.add_(part.double().square().sum())
    return total

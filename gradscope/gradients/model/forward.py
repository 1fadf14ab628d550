"""One forward pass: log-probabilities and entropies of completion tokens, at the trainer's temperature.

Shapes: B rows, S padded length, T tokens of a completion, V vocabulary, Q tokens that ran before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gradscope.gradients.model.batches import PaddedBatch

_CHECKPOINTING = "gradient_checkpointing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Tokens that ran before the batch and are the same for all of its rows."""

    cache: Any
    """Their keys and values, in the model's own kind of cache, expanded to B rows."""
    length: int
    """Q."""


def completion_logprobs(
    model: Any,
    batch: PaddedBatch,
    temperature: float,
    softmax_dtype: torch.dtype = torch.float32,
    past: Past | None = None,
    *,
    entropies: bool = False,
) -> list[torch.Tensor]:
    """Log pi of each completion token.

    Logits are formed only from the last prompt token on, where the model allows that.

    Args:
        softmax_dtype: The least precision of the softmax. The gradient of a token of probability near 1 is 1 - pi, of
            which float32 keeps few digits; they matter where that token is a row of its own.
        entropies: Whether each row's entropies follow its log-probabilities.

    Returns:
        Per row its log-probabilities with their graph, [B][T], or [B][2 T] with entropies behind them.
    """
    return [
        torch.cat([_logprobs(scaled, ids), _entropies(scaled)]) if entropies else _logprobs(scaled, ids)
        for scaled, ids in _completion_logits(model, batch, temperature, softmax_dtype, past)
    ]


def _logprobs(scaled: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return scaled.gather(1, ids.unsqueeze(1)).squeeze(1) - torch.logsumexp(scaled, dim=1)


def _entropies(scaled: torch.Tensor) -> torch.Tensor:
    logs = torch.log_softmax(scaled, dim=1)
    return -(logs.exp() * logs).sum(dim=1)


def completion_entropies(model: Any, batch: PaddedBatch, temperature: float) -> list[torch.Tensor]:
    """Entropy of the policy where it sampled each completion token, in nats, [B][T]."""
    with torch.no_grad():
        logs = [
            torch.log_softmax(scaled, 1) for scaled, _ in _completion_logits(model, batch, temperature, torch.float32)
        ]
    return [torch.special.entr(each.exp()).sum(dim=1) for each in logs]


def _completion_logits(
    model: Any, batch: PaddedBatch, temperature: float, softmax_dtype: torch.dtype, past: Past | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Row by row the logits that predict its completion, [T, V], over the temperature, and its tokens, [T]."""
    starts = [stop - num - 1 for (_, stop), num in zip(batch.spans, batch.num_completion, strict=True)]
    first = min(starts)
    accepted = forward_arguments(model)
    arguments: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if "position_ids" in accepted and batch.position_ids is not None:
        arguments["position_ids"] = batch.position_ids
    if "logits_to_keep" in accepted:
        arguments["logits_to_keep"] = batch.length - first
    if "use_cache" in accepted:
        arguments["use_cache"] = False
    if past is not None:
        assert batch.position_ids is not None, "rows in a trainer's frame share no prompt"
        mask = batch.attention_mask
        arguments["attention_mask"] = torch.cat([mask.new_ones(len(mask), past.length), mask], dim=1)
        arguments["position_ids"] = batch.position_ids + past.length
        arguments.update(past_key_values=past.cache, use_cache=True)
    with activations_kept(model):
        logits = model(**arguments).logits
    offset = batch.length - logits.shape[1]
    # Rows are unbound first: indexing them one by one would cost a gradient of the whole batch per row.
    for row, ids, start, num in zip(logits.unbind(0), batch.input_ids, starts, batch.num_completion, strict=True):
        chosen = row[start - offset : start - offset + num].to(torch.promote_types(logits.dtype, softmax_dtype))
        yield chosen / temperature, ids[start + 1 : start + 1 + num]


@contextmanager
def activations_kept(model: Any) -> Iterator[None]:
    """Switch off gradient checkpointing, which transformers does in training mode.

    A forward pass that runs again within the backward pass would be seen twice by every hook, and the reentrant kind
    knows no gradients of chosen tensors. Batches are small enough without.

    Yields:
        Nothing.
    """
    switched = [module for module in model.modules() if module.training and getattr(module, _CHECKPOINTING, False)]
    for module in switched:
        setattr(module, _CHECKPOINTING, False)
    try:
        yield
    finally:
        for module in switched:
            setattr(module, _CHECKPOINTING, True)


def forward_arguments(model: Any) -> frozenset[str]:
    """Names of what a model's forward pass can be given."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _parameters(type(base).forward)


@lru_cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)

"""One forward pass: log-probabilities and entropies of completion tokens, at the trainer's temperature.

Shapes: B rows, S padded length, T tokens of a completion, V vocabulary, Q tokens that ran before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.gradients.model.batches import PaddedBatch
from gradscope.gradients.model.calls import activations_kept, forward_arguments
from gradscope.gradients.model.head.plain import plain_head, told_input
from gradscope.gradients.model.head.sliced import Watch, sliced_outputs
from gradscope.gradients.processes.sharding import end_of_pass


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
    watch: Watch | None = None,
) -> list[torch.Tensor]:
    """Log pi of each completion token.

    The output layer is taken in slices of the vocabulary where it can be, so that the logits of all tokens never exist;
    elsewhere the model forms them, from the last prompt token on where it can be asked to.

    Args:
        softmax_dtype: The least precision of the softmax. The gradient of a token of probability near 1 is 1 - pi, of
            which whole float32 logits keep few digits; they matter where that token is a row of its own.
        entropies: Whether each row's entropies follow its log-probabilities.
        watch: Told, within the backward pass, what a sliced output layer's own parameters get.

    Returns:
        Per row its log-probabilities with their graph, [B][T], or [B][2 T] with entropies behind them.
    """
    head = plain_head(model)
    if head is None:
        return [
            torch.cat([_logprobs(scaled, ids), _entropies(scaled)]) if entropies else _logprobs(scaled, ids)
            for scaled, ids in _completion_logits(model, batch, temperature, softmax_dtype, past)
        ]
    lengths, found = list(batch.num_completion), []

    def take(hidden: torch.Tensor) -> None:
        rows = list(_predicting(hidden, batch))
        outputs = sliced_outputs(
            head.at(temperature),
            torch.cat([states for states, _ in rows]),
            torch.cat([ids for _, ids in rows]).to(hidden.device),
            torch.promote_types(hidden.dtype, softmax_dtype),
            entropies=entropies,
            watch=watch,
        )
        found.append(outputs)

    with told_input(head, take):
        column = _run(model, batch, past)
    ((logprobs, beside),) = found
    logprobs = end_of_pass(logprobs, column)
    if not entropies:
        return list(torch.split(logprobs, lengths))
    return [torch.cat(pair) for pair in zip(torch.split(logprobs, lengths), torch.split(beside, lengths), strict=True)]


def completion_entropies(model: Any, batch: PaddedBatch, temperature: float) -> list[torch.Tensor]:
    """Entropy of the policy where it sampled each completion token, in nats, [B][T]."""
    with torch.no_grad():
        outputs = completion_logprobs(model, batch, temperature, entropies=True)
    return [row[num:] for row, num in zip(outputs, batch.num_completion, strict=True)]


def _logprobs(scaled: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return scaled.gather(1, ids.unsqueeze(1)).squeeze(1) - torch.logsumexp(scaled, dim=1)


def _entropies(scaled: torch.Tensor) -> torch.Tensor:
    logs = torch.log_softmax(scaled, dim=1)
    return -(logs.exp() * logs).sum(dim=1)


def _completion_logits(
    model: Any, batch: PaddedBatch, temperature: float, softmax_dtype: torch.dtype, past: Past | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Row by row the logits that predict its completion, [T, V], over the temperature, and its tokens, [T]."""
    logits = _run(model, batch, past)
    for row, ids in _predicting(logits, batch):
        yield row.to(torch.promote_types(logits.dtype, softmax_dtype)) / temperature, ids


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
    with activations_kept(model):
        logits: torch.Tensor = model(**arguments).logits
    return logits


def _predicting(outputs: torch.Tensor, batch: PaddedBatch) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Row by row what stands where its completion is predicted, [T, ...], and its tokens, [T]."""
    offset = batch.length - outputs.shape[1]
    # Rows are unbound first: indexing them one by one would cost a gradient of the whole batch per row.
    for row, ids, start, num in zip(
        outputs.unbind(0), batch.input_ids, _starts(batch), batch.num_completion, strict=True
    ):
        yield row[start - offset : start - offset + num], ids[start + 1 : start + 1 + num]


def _starts(batch: PaddedBatch) -> list[int]:
    """Position of each row's last prompt token."""
    return [stop - num - 1 for (_, stop), num in zip(batch.spans, batch.num_completion, strict=True)]

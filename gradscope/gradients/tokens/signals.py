"""The gradient by the last hidden state and by the logits: what reaches the output head from each token.

The row of a token is the derivative of its log-probability by the input of the output head (d numbers) or by the logits
(V numbers: one-hot minus probabilities, over the temperature). Only the token's own position has one, so one pass a
rollout gives all rows; a rollout's row is their sum, weighed as its loss weighs them.

Shapes: R rollouts of the step, T tokens of a completion, N token rows of a group, d hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gradscope.errors import InputError
from gradscope.gradients.model.batches import pad_batch
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Channel, Row
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.table import TokenTable, token_tables
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress

Signal = Literal["hidden", "logit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalGram:
    """The inner products of one group's token rows, without advantages."""

    table: TokenTable
    """The tokens and their weights, [N]."""
    gram: Array
    """Inner products of d log pi(token) / d signal, float64, [N, N]."""
    num_columns: int
    """d or V."""
    num_buckets: None = None
    """Rows are never sketched: there are as many numbers in them as in the signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSignals:
    """Both kinds of rows of one step."""

    tokens: tuple[SignalGram, ...]
    """One a group; none for a group of which no token counts."""
    score_gram: Array
    """Inner products of the rollouts' rows without advantages, [R, R]."""
    logged_gram: Array | None
    """The same with the logged advantage of every token; None where none were logged, [R, R]."""
    num_columns: int
    """d or V."""


def measure_signals(
    prepared: PreparedStep,
    step: StepGram,
    signal: Signal,
    *,
    most: int | None,
    seed: int,
    progress: ProgressCallback = no_progress,
) -> StepSignals:
    """The Gram matrices of token rows and of rollout rows.

    Args:
        step: The step's Gram matrix, for the log-probabilities.
        most: Token rows of a group; of more tokens, as many are drawn. None: all. Rollouts' rows have all.
        seed: Decides which tokens are drawn.

    Returns:
        The step's signals.

    Raises:
        InputError: The model has no output head whose input could be taken.
    """
    tables = {table.group_id: table for table in token_tables(prepared, step, most=most, seed=seed, rollouts=None)}
    logged = all(advantages is not None for advantages in prepared.plan.advantages)
    grams: list[SignalGram] = []
    sums: list[torch.Tensor] = []
    first = 0
    for done, group in enumerate(prepared.groups):
        members = range(first, first + len(group.rollouts))
        first, table = members.stop, tables.get(group.group_id)
        rows = [_token_rows(prepared, sequence, signal) for sequence in members]
        sums += [_weighed(prepared, step, sequence, own, logged) for sequence, own in zip(members, rows, strict=True)]
        if table is not None:
            chosen = torch.stack([rows[row.sequence - members.start][row.position] for row in table.rows]).double()
            grams.append(SignalGram(table=table, gram=_products(chosen), num_columns=chosen.shape[1]))
        progress(done + 1, len(prepared.groups), "groups")
    stacked = torch.stack(sums, dim=1)
    return StepSignals(
        tokens=tuple(grams),
        score_gram=_products(stacked[0]),
        logged_gram=_products(stacked[1]) if logged else None,
        num_columns=stacked.shape[2],
    )


def _token_rows(prepared: PreparedStep, sequence: int, signal: Signal) -> torch.Tensor:
    """D log pi(token) / d signal of every token of one completion, [T, d] or [T, V]."""
    plan, policy = prepared.plan, prepared.policy
    batch = pad_batch([0], [plan.sequences[sequence]], policy.device)
    with _watched(policy.model, signal) as seen, torch.enable_grad():
        (logprobs,) = completion_logprobs(policy.model, batch, plan.objective.temperature)
    (grad,) = torch.autograd.grad(logprobs.sum(), seen)
    # what the head saw ends where the batch does, in the trainer's padding where the sequence stands in it; before that
    # come the last prompt token and all of the completion, whose last token predicts nothing
    seen_of_it, ((_, end),) = grad.flatten(0, -2), batch.spans
    last = len(seen_of_it) - (batch.length - end) - 1
    return seen_of_it[last - len(logprobs) : last]


@contextmanager
def _watched(model: Any, signal: Signal) -> Iterator[list[torch.Tensor]]:
    """Cut the graph at the input or the output of the output head, so that derivatives by it can be taken."""
    head = model.get_output_embeddings()
    if head is None:
        raise InputError(
            "The model has no output head, so there is no last hidden state to take a gradient by.",
            hint="Look at the gradient by the parameters: --rows rollout.",
        )
    seen: list[torch.Tensor] = []

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.detach().requires_grad_())
        return seen[-1]

    if signal == "hidden":
        handle = head.register_forward_pre_hook(lambda _, inputs: (cut(inputs[0]), *inputs[1:]))
    else:
        handle = head.register_forward_hook(lambda _, __, output: cut(output))
    try:
        yield seen
    finally:
        handle.remove()


def _weighed(prepared: PreparedStep, step: StepGram, sequence: int, rows: torch.Tensor, logged: bool) -> torch.Tensor:
    """A rollout's own row: its tokens' rows weighed as in the loss, without and with logged advantages, [1 or 2, d]."""
    logprobs = torch.tensor(step.logprobs[sequence], device=rows.device)
    channels: tuple[Channel, ...] = ("score", "logged") if logged else ("score",)
    weights = [prepared.plan.cotangent(Row(sequence=sequence, channel=channel), logprobs) for channel in channels]
    return torch.stack(weights).double() @ rows.double()


def _products(rows: torch.Tensor) -> Array:
    return np.asarray((rows @ rows.T).cpu().numpy(), dtype=np.float64)

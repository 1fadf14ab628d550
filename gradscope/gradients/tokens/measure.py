"""Gradients of single tokens: the Gram matrix of grad log pi over the tokens of a group.

A token's row under any advantage is its weight times grad log pi of the token, and so are the importance ratio, the
clip and the trainer's averaging: per token everything that the trainer does is a scalar. The Gram of the rows is
therefore diag(v) U diag(v), with U computed once.

Shapes: N token rows, R rollouts of the step, P parameters, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.calls import removed_later
from gradscope.gradients.model.passes import completion_entropies, completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.sharding import require_one_process
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Channel, Row, RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.verify import require_agreement, row_tolerance_of
from gradscope.gradients.tokens.lockstep import lockstep_gram, sketch_plain_rows, sketch_rows
from gradscope.gradients.tokens.rows import TokenRow, TokenTable, chunks_of, token_loop_rows, token_tables
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress

# The self-check of token rows: a few of them by plain backward passes, and their sums against the rollouts' rows.
#
# The identity 1'K1 = |gradient|^2 cannot distinguish token rows from a decomposition by position: their sums agree. So
# three rows of every group are recomputed, and their inner products compared.


def _verify(
    prepared: PreparedStep, table: TokenTable, gram: Array, step: StepGram, num_buckets: int | None, seed: int
) -> None:
    """Check inner products [N, N] of token rows, without weights, against plain rows and the rollouts' own.

    A sketch is a fixed linear map, so plain rows must have the same ones.
    """
    policy, plan, limit = prepared.policy, prepared.plan, row_tolerance_of(prepared.policy)
    # first, middle and last row: of different rollouts where there are several
    checked = sorted({0, len(table.rows) // 2, len(table.rows) - 1})
    chunks, temperature = chunks_of([table.rows[row] for row in checked], plan.sequences), plan.objective.temperature
    if num_buckets is None:
        accumulator = GramAccumulator(len(checked), policy.device)
        token_loop_rows(policy.model, policy.trainable, chunks, temperature, accumulator.add_rows)
        exact = accumulator.gram.cpu().numpy()
    else:
        exact = sketch_plain_rows(policy, chunks, temperature, num_buckets, seed).gram.cpu().numpy()
    # A spectrum knows singular values on the scale of all rows, so a small row's error counts on that scale too.
    squares = np.diag(exact)
    differences = np.abs(gram[np.ix_(checked, checked)] - exact)
    row_error = _largest_relative(differences, np.sqrt(np.maximum(squares, squares.mean())))
    require_agreement("The token rows disagree with one backward pass a token", row_error, limit)
    if num_buckets is None and len(table.rows) == table.num_tokens:
        # A token of probability near 1 has a small row, 1 - pi times what an undecided token's would be, and the
        # rollouts' own rows know 1 - pi only to float32; so the scale of a token is its norm over 1 - pi.
        members, member = np.unique(table.rollouts, return_inverse=True)
        mixing = np.zeros((len(members), len(table.rows)))
        mixing[member, np.arange(len(table.rows))] = table.score_weights
        difference = np.abs(mixing @ gram @ mixing.T - step.score_gram[np.ix_(members, members)])
        logprobs = np.array([step.logprobs[row.sequence][row.position] for row in table.rows])
        scale = np.sqrt(np.diag(gram)) / np.clip(-np.expm1(logprobs), np.finfo(np.float32).eps, 1.0)
        sum_error = _largest_relative(difference, np.abs(mixing) @ scale)
        require_agreement("The token rows disagree with the rollouts' own gradients", sum_error, limit)


def _largest_relative(differences: Array, norms: Array) -> float:
    """The largest difference of an inner product over the product of two norms."""
    scale = np.outer(norms, norms)
    return float(np.max(np.divide(differences, scale, out=differences.copy(), where=scale > 0)))


class TokenGram(Struct, frozen=True, kw_only=True):
    """The inner products of one group's token rows, without advantages."""

    table: TokenTable  # the tokens and their weights, [N]
    gram: Array  # inner products of grad log pi(token), float64, [N, N]
    num_columns: int  # P; of a signal d or V
    slow_parameters: tuple[str, ...] = ()  # parameters without a layer rule, computed one backward pass a row
    num_buckets: int | None = None
    """Numbers in each row's sketch where inner products are those of sketches; None where they are exact."""


def measure_tokens(
    prepared: PreparedStep,
    step: StepGram,
    *,
    max_tokens: int | None = 512,
    num_buckets: int | None = None,
    seed: int = 0,
    rollouts: Collection[int] | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[TokenGram, ...]:
    """The Gram matrix of token rows of each group that has a token in the loss.

    Args:
        step: The step's Gram matrix: it gives the log-probabilities, and the token rows must add up to it.
        max_tokens: Tokens of a group; of more, as many are drawn, each equally likely. None: all.
        num_buckets: Sketch each row in as many numbers instead of forming all inner products.
        seed: Decides which tokens are drawn, and the sketch.
        rollouts: Rollouts of the step whose tokens are wanted; None: all.
    """
    require_one_process("Rows of tokens are")
    grams: list[TokenGram] = []
    for table in token_tables(prepared, step, max_tokens=max_tokens, seed=seed, rollouts=rollouts):
        gram, slow = _gram(prepared, table.rows, num_buckets, seed)
        _verify(prepared, table, gram, step, num_buckets, seed)
        grams.append(
            TokenGram(
                table=table,
                gram=gram,
                num_columns=prepared.policy.num_parameters,
                slow_parameters=tuple(sorted(slow)),
                num_buckets=num_buckets,
            )
        )
        progress(len(grams), len(prepared.groups), "groups")
    return tuple(grams)


def _gram(
    prepared: PreparedStep, rows: Sequence[TokenRow], num_buckets: int | None, seed: int
) -> tuple[Array, frozenset[str]]:
    """Inner products of all rows, or of their sketches, and the names of parameters that went the slow way."""
    policy, plan = prepared.policy, prepared.plan
    chunks, temperature = chunks_of(rows, plan.sequences), plan.objective.temperature
    if num_buckets is not None:
        sketch, slow = sketch_rows(policy, chunks, temperature, num_buckets, seed)
        return np.asarray(sketch.gram.cpu().numpy()), slow
    accumulator = GramAccumulator(len(rows), policy.device)
    slow = lockstep_gram(policy.model, policy.trainable, chunks, temperature, accumulator)
    for name in sorted(slow):
        token_loop_rows(policy.model, {name: policy.trainable[name]}, chunks, temperature, accumulator.add_rows)
    if accumulator.num_parameters != policy.num_parameters:
        raise VerificationError(
            f"The Gram matrix of token rows covers {accumulator.num_parameters} of {policy.num_parameters} parameters."
        )
    return np.asarray(accumulator.gram.cpu().numpy()), slow


class RolloutTokens(Struct, frozen=True, kw_only=True):
    """The tokens of one rollout under the logged advantages; the KL part is left out."""

    group_id: str
    sample: int
    texts: tuple[str, ...]  # each token alone as text, [T]; its id where there is no tokenizer
    is_seen: NDArray[np.bool_]
    """Which tokens were measured: not those that the loss masks, nor those that were not drawn, [T]."""
    weights: Array
    """The factor on grad log pi in the loss: negative where the update makes the token more likely, [T]."""
    norms: Array  # norm of each token's gradient, 0 where it was not measured, [T]
    shares: Array | None
    """Part of the rollout's gradient along that gradient's own direction, [T]; None where tokens were not drawn."""
    entropies: Array  # entropy of the policy where the token was sampled, in nats, [T]
    logprobs: Array  # log pi of the policy, [T]


def measure_rollout_tokens(
    prepared: PreparedStep, step: StepGram, rollouts: Sequence[int], *, max_tokens: int = 512
) -> tuple[RolloutTokens, ...]:
    """Every token of some rollouts of one step, the most important first; none without advantages or counted tokens.

    Beyond ``max_tokens`` token rows, rollouts are left out from the end; of a first one that is longer, as many tokens
    are drawn.
    """
    policy, plan = prepared.policy, prepared.plan
    lengths = np.cumsum([len(plan.sequences[rollout].completion_ids) for rollout in rollouts])
    chosen = list(rollouts[: max(1, int(np.searchsorted(lengths, max_tokens, side="right")))])
    grams = measure_tokens(prepared, step, max_tokens=max_tokens, rollouts=chosen)
    entropies = policy_entropies(policy, plan, chosen, step.batch_tokens)
    gram_of = {rollout: gram for gram in grams for rollout in np.unique(gram.table.rollouts).tolist()}
    return tuple(
        _tokens(policy.tokenizer, plan, rollout, gram_of[rollout], (entropies[rollout], step.logprobs[rollout]))
        for rollout in chosen
        if rollout in gram_of and gram_of[rollout].table.logged_weights is not None
    )


def policy_entropies(
    policy: MeasuredPolicy, plan: RowPlan, rollouts: Sequence[int], batch_tokens: int
) -> dict[int, Array]:
    """Entropy of the policy at each completion token of some rollouts of a step, in nats, [T] each."""
    entropies: dict[int, Array] = {}
    lengths = [plan.sequences[rollout].length for rollout in rollouts]
    for part in split_rows(lengths, batch_tokens):
        rows = [rollouts[index] for index in part]
        batch = pad_batch(rows, [plan.sequences[row] for row in rows], policy.device)
        rounds = completion_entropies(policy.model, batch, plan.objective.temperature)
        entropies.update((row, values.double().cpu().numpy()) for row, values in zip(rows, rounds, strict=True))
    return entropies


def _tokens(
    tokenizer: Any, plan: RowPlan, rollout: int, gram: TokenGram, policy_values: tuple[Array, Array]
) -> RolloutTokens:
    """The tokens of one rollout, the policy's entropies and log-probabilities of which are known."""
    sequence, table = plan.sequences[rollout], gram.table
    assert table.logged_weights is not None, "the caller asks for rollouts with logged advantages"
    token_rows = np.flatnonzero(table.rollouts == rollout)
    positions, factors = table.positions[token_rows], table.logged_weights[token_rows]
    rows = factors[:, None] * gram.gram[np.ix_(token_rows, token_rows)] * factors
    entropies, logprobs = policy_values
    norms, weights, is_seen, shares = (np.zeros(len(entropies)) for _ in range(4))
    norms[positions] = np.sqrt(np.clip(np.diag(rows), 0.0, None))
    weights[positions], is_seen[positions] = factors, 1.0
    total = float(rows.sum())
    shares[positions] = rows.sum(axis=1) / total if total > 0 else 0.0
    is_complete = len(table.rows) == table.num_tokens and total > 0
    return RolloutTokens(
        group_id=sequence.group_id,
        sample=sequence.sample,
        texts=tuple(token_text(tokenizer, token) for token in sequence.completion_ids),
        is_seen=is_seen > 0,
        weights=weights,
        norms=norms,
        shares=shares if is_complete else None,
        entropies=entropies,
        logprobs=logprobs,
    )


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text, special tokens by their name; a part of a character stays its replacement mark."""
    return f"[{token}]" if tokenizer is None else str(tokenizer.decode([token]))


# The gradient by the last hidden state and by the logits: each token's signal at the output head.
#
# The row of a token is the derivative of its log-probability by the input of the output head (d numbers) or by the
# logits (V numbers: one-hot minus probabilities, over the temperature). Only the token's own position has one, so one
# pass a rollout gives all rows; a rollout's row is their sum, weighed as its loss weighs them.
Signal = Literal["hidden", "logit"]


class StepSignals(Struct, frozen=True, kw_only=True):
    """Both kinds of rows of one step."""

    tokens: tuple[TokenGram, ...]
    """One a group; none for a group of which no token counts. Rows are d log pi(token) / d signal."""
    score_gram: Array  # inner products of the rollouts' rows without advantages, [R, R]
    logged_gram: Array | None  # the same with the logged advantage of every token; None where none were logged, [R, R]
    num_columns: int  # d or V


def measure_signals(
    prepared: PreparedStep,
    step: StepGram,
    signal: Signal,
    *,
    max_tokens: int | None,
    seed: int,
    progress: ProgressCallback = no_progress,
) -> StepSignals:
    """The Gram matrices of token rows and of rollout rows.

    Args:
        step: The step's Gram matrix, for the log-probabilities.
        max_tokens: Token rows of a group; of more tokens, as many are drawn. None: all. Rollouts' rows have all.
        seed: Decides which tokens are drawn.

    Raises:
        InputError: The model has no output head whose input could be read.
    """
    by_group = token_tables(prepared, step, max_tokens=max_tokens, seed=seed, rollouts=None)
    tables = {table.group_id: table for table in by_group}
    logged = all(advantages is not None for advantages in prepared.plan.advantages)
    grams: list[TokenGram] = []
    sums: list[torch.Tensor] = []
    first = 0
    for done, group in enumerate(prepared.groups):
        members = range(first, first + len(group.rollouts))
        first, table = members.stop, tables.get(group.group_id)
        rows = [_token_rows(prepared, sequence, signal) for sequence in members]
        sums += [_weighed(prepared, step, i, grads, logged) for i, grads in zip(members, rows, strict=True)]
        if table is not None:
            chosen = torch.stack([rows[row.sequence - members.start][row.position] for row in table.rows]).double()
            grams.append(TokenGram(table=table, gram=_products(chosen), num_columns=chosen.shape[1]))
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
    # the head's input ends where the batch does, or in the trainer's padding where the sequence has that; before that
    # come the last prompt token and all of the completion, whose last token predicts nothing
    signal_grads, ((_, end),) = grad.flatten(0, -2), batch.spans
    last = len(signal_grads) - (batch.length - end) - 1
    return signal_grads[last - len(logprobs) : last]


@contextmanager
def _watched(model: Any, signal: Signal) -> Iterator[list[torch.Tensor]]:
    """Cut the graph at the input or the output of the output head, for derivatives by it."""
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
    with removed_later([handle]):
        yield seen


def _weighed(prepared: PreparedStep, step: StepGram, sequence: int, rows: torch.Tensor, logged: bool) -> torch.Tensor:
    """A rollout's own row: its tokens' rows weighed as in the loss, without and with logged advantages, [1 or 2, d]."""
    logprobs = torch.tensor(step.logprobs[sequence], device=rows.device)
    channels: tuple[Channel, ...] = ("score", "logged") if logged else ("score",)
    weights = [prepared.plan.cotangent(Row(sequence=sequence, channel=channel), logprobs) for channel in channels]
    return torch.stack(weights).double() @ rows.double()


def _products(rows: torch.Tensor) -> Array:
    return np.asarray((rows @ rows.T).cpu().numpy(), dtype=np.float64)

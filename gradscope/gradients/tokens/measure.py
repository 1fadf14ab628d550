"""What single tokens pull: the Gram matrix of grad log pi over the tokens of a group.

A token's row under any advantage is its weight times grad log pi of the token, and so are the importance ratio, the
clip and the trainer's averaging: per token everything that the trainer does is a scalar. The Gram of the rows is
therefore diag(v) U diag(v), with U computed once.

Shapes: N token rows, R rollouts of the step, P parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gradscope.errors import VerificationError
from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.processes.sharding import require_one_process
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.lockstep import lockstep_gram
from gradscope.gradients.tokens.loop import token_loop_rows
from gradscope.gradients.tokens.rows import TokenRow, chunks_of
from gradscope.gradients.tokens.sketched import sketch_rows
from gradscope.gradients.tokens.table import TokenTable, token_tables
from gradscope.gradients.tokens.verify import TokenVerification, verify_token_gram, verify_token_sketch
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGram:
    """The inner products of one group's token rows, without advantages."""

    table: TokenTable
    """The tokens and their weights, [N]."""
    gram: Array
    """Inner products of grad log pi(token), float64, [N, N]."""
    num_columns: int
    """P."""
    slow_parameters: tuple[str, ...]
    """Parameters without a layer rule, computed one backward pass a row."""
    verification: TokenVerification
    """The self-check."""
    num_buckets: int | None = None
    """Numbers kept of each row where inner products are those of sketches; None where they are exact."""


def measure_tokens(
    prepared: PreparedStep,
    step: StepGram,
    *,
    most: int | None = 512,
    num_buckets: int | None = None,
    seed: int = 0,
    rollouts: Collection[int] | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[TokenGram, ...]:
    """The Gram matrix of token rows of each group.

    Args:
        step: The step's Gram matrix: it gives the log-probabilities, and the token rows must add up to it.
        most: Tokens of a group; of more, as many are drawn, each equally likely. None: all.
        num_buckets: Sketch each row in as many numbers instead of forming all inner products.
        seed: Decides which tokens are drawn, and the sketch.
        rollouts: Rollouts of the step whose tokens are wanted; None: all.

    Returns:
        One matrix per group; none for a group of which no token counts in the loss.
    """
    require_one_process("Rows of tokens are")
    grams: list[TokenGram] = []
    for table in token_tables(prepared, step, most=most, seed=seed, rollouts=rollouts):
        if num_buckets is None:
            gram, slow = _gram(prepared, table.rows)
            verification = verify_token_gram(prepared, table, gram, step)
        else:
            gram, slow = _sketched(prepared, table.rows, num_buckets, seed)
            verification = verify_token_sketch(prepared, table, gram, num_buckets, seed)
        grams.append(
            TokenGram(
                table=table,
                gram=gram,
                num_columns=prepared.policy.num_parameters,
                slow_parameters=tuple(sorted(slow)),
                verification=verification,
                num_buckets=num_buckets,
            )
        )
        progress(len(grams), len(prepared.groups), "groups")
    return tuple(grams)


def _gram(prepared: PreparedStep, rows: Sequence[TokenRow]) -> tuple[Array, frozenset[str]]:
    """Inner products of all rows, and the names of parameters that went the slow way."""
    policy, plan = prepared.policy, prepared.plan
    accumulator = GramAccumulator(len(rows), policy.device)
    chunks, temperature = chunks_of(rows, plan.sequences), plan.objective.temperature
    slow = lockstep_gram(policy.model, policy.trainable, chunks, temperature, accumulator)
    for name in sorted(slow):
        token_loop_rows(policy.model, {name: policy.trainable[name]}, chunks, temperature, accumulator.add_rows)
    if accumulator.num_parameters != policy.num_parameters:
        raise VerificationError(
            f"The Gram matrix of token rows covers {accumulator.num_parameters} of {policy.num_parameters} parameters.",
            hint="Please report this with the model's config.json; its numbers must not be used.",
        )
    return np.asarray(accumulator.gram.cpu().numpy()), slow


def _sketched(
    prepared: PreparedStep, rows: Sequence[TokenRow], num_buckets: int, seed: int
) -> tuple[Array, frozenset[str]]:
    """Inner products of the sketches of all rows, and the names of parameters that went the slow way."""
    plan = prepared.plan
    chunks = chunks_of(rows, plan.sequences)
    sketch, slow = sketch_rows(prepared.policy, chunks, plan.objective.temperature, num_buckets, seed)
    return np.asarray(sketch.gram.cpu().numpy()), slow

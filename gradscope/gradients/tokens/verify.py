"""The self-check of token rows: a few of them by plain backward passes, and their sums against the rollouts' rows.

The identity 1'K1 = |gradient|^2 cannot tell token rows from a decomposition by position: their sums are the same. So
three rows of every group are recomputed, and their inner products compared.

Shapes: N token rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from gradscope.gradients.engines.accumulator import GramAccumulator
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.precision import uses_tf32
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.step.verify import require_agreement, tolerance
from gradscope.gradients.tokens.loop import token_loop_rows
from gradscope.gradients.tokens.rows import TokenRow, chunks_of
from gradscope.gradients.tokens.sketched import sketch_plain_rows
from gradscope.gradients.tokens.table import TokenTable
from gradscope.metrics.gram.spectrum import Array

_TOKEN_FACTOR = 5
"""A token's row has fewer digits than a sum of hundreds: where pi is near 1, what is left of it has cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerification:
    """What the self-check of one matrix of token rows found; it passed, or there would be an error in its place."""

    row_error: float
    """Largest difference of an inner product of the recomputed rows, over the product of their norms; a row
    smaller than their root mean square counts as that."""
    num_rows: int
    """Rows that were recomputed, one plain backward pass each."""
    sum_error: float | None
    """Largest difference between inner products of the sums of each rollout's token rows and the rollouts' own Gram
    matrix, in units of the rows of undecided tokens; None where tokens were sampled or sketched."""
    tolerance: float
    """The largest difference that passes."""

    def describe(self) -> dict[str, float | str | bool | None]:
        """Its fields and ``passed``, for the JSON document."""
        return {"passed": True, **asdict(self)}


def verify_token_gram(prepared: PreparedStep, table: TokenTable, gram: Array, step: StepGram) -> TokenVerification:
    """Check a Gram matrix [N, N] of token rows, without weights, against plain rows and the rollouts' own."""
    checked = _checked(len(table.rows))
    limit = _limit(prepared.policy)
    plain = _plain_gram(prepared, [table.rows[row] for row in checked])
    row_error = _require_close(prepared.policy, gram[np.ix_(checked, checked)], plain)
    sum_error = _sum_error(gram, table, step) if len(table.rows) == table.num_tokens else None
    if sum_error is not None:
        require_agreement("The token rows disagree with the rollouts' own gradients", sum_error, limit)
    return TokenVerification(row_error=row_error, num_rows=len(checked), sum_error=sum_error, tolerance=limit)


def verify_token_sketch(
    prepared: PreparedStep, table: TokenTable, gram: Array, num_buckets: int, seed: int
) -> TokenVerification:
    """Check sketched rows: a sketch is a fixed linear map, so plain rows must have the same ones."""
    checked = _checked(len(table.rows))
    chunks = chunks_of([table.rows[row] for row in checked], prepared.plan.sequences)
    plain = sketch_plain_rows(prepared.policy, chunks, prepared.plan.objective.temperature, num_buckets, seed)
    row_error = _require_close(prepared.policy, gram[np.ix_(checked, checked)], np.asarray(plain.gram.cpu().numpy()))
    return TokenVerification(
        row_error=row_error, num_rows=len(checked), sum_error=None, tolerance=_limit(prepared.policy)
    )


def _require_close(policy: MeasuredPolicy, block: Array, plain: Array) -> float:
    # A spectrum knows singular values on the scale of all rows, so a small row's error counts on that scale too.
    squares = np.diag(plain)
    error = _largest_relative(np.abs(block - plain), np.sqrt(np.maximum(squares, squares.mean())))
    require_agreement("The token rows disagree with one backward pass a token", error, _limit(policy))
    return error


def _limit(policy: MeasuredPolicy) -> float:
    """The largest difference that passes."""
    return _TOKEN_FACTOR * tolerance(policy.dtype, tf32=uses_tf32(policy.device))


def _plain_gram(prepared: PreparedStep, rows: Sequence[TokenRow]) -> Array:
    """Inner products of a few rows by one plain backward pass each."""
    policy, plan = prepared.policy, prepared.plan
    accumulator = GramAccumulator(len(rows), policy.device)
    chunks = chunks_of(rows, plan.sequences)
    token_loop_rows(policy.model, policy.trainable, chunks, plan.objective.temperature, accumulator.add_rows)
    return np.asarray(accumulator.gram.cpu().numpy())


def _checked(num_rows: int) -> list[int]:
    """First, middle and last row: of different rollouts where there are several."""
    return sorted({0, num_rows // 2, num_rows - 1})


def _sum_error(gram: Array, table: TokenTable, step: StepGram) -> float:
    """How far the sums of the rollouts' tokens are from the rollouts' score vectors."""
    # A token of probability near 1 has a small row, 1 - pi times what an undecided token's would be, and the rollouts'
    # own rows know 1 - pi only to float32; so the scale of a token is its norm over 1 - pi.
    members, member = np.unique(table.rollouts, return_inverse=True)
    mixing = np.zeros((len(members), len(table.rows)))
    mixing[member, np.arange(len(table.rows))] = table.score_weights
    difference = np.abs(mixing @ gram @ mixing.T - step.score_gram[np.ix_(members, members)])
    logprobs = np.array([step.logprobs[row.sequence][row.position] for row in table.rows])
    scale = np.sqrt(np.diag(gram)) / np.clip(-np.expm1(logprobs), np.finfo(np.float32).eps, 1.0)
    return _largest_relative(difference, np.abs(mixing) @ scale)


def _largest_relative(differences: Array, norms: Array) -> float:
    """The largest difference of an inner product over the product of two norms."""
    scale = np.outer(norms, norms)
    return float(np.max(np.divide(differences, scale, out=differences.copy(), where=scale > 0)))

"""What single tokens pull: the Gram matrix of grad log pi over the tokens of a group, exact.

A token's row under any advantage is its weight times grad log pi of the token, and so are the importance ratio, the
clip and the trainer's averaging: per token everything that the trainer does is a scalar. The Gram of the rows is
therefore diag(v) U diag(v), with U computed once.

Shapes: N token rows, R rollouts of the step, T tokens of a completion, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.errors import VerificationError
from gradscope.gradients.batches import default_batch_tokens
from gradscope.gradients.gram import GramAccumulator
from gradscope.gradients.lockstep import lockstep_gram
from gradscope.gradients.objective import Objective
from gradscope.gradients.policy import Policy
from gradscope.gradients.prepare import plan_step
from gradscope.gradients.result import Array, StepGram
from gradscope.gradients.rows import Channel, Row, RowPlan
from gradscope.gradients.token_loop import token_loop_rows
from gradscope.gradients.token_rows import TokenRow, chunks_of, sample_tokens
from gradscope.gradients.verify import tolerance
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.types import RolloutGroup

CHECKED_ROWS = 3
"""Rows of every matrix that are recomputed by plain backward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenVerification:
    """What the self-check of one matrix of token rows found; it passed, or there would be an error in its place."""

    row_error: float
    """Largest difference of an inner product of the recomputed rows, over the product of their norms."""
    num_rows: int
    """Rows that were recomputed, one plain backward pass each."""
    sum_error: float | None
    """Largest difference between inner products of the sums of each rollout's token rows and the rollouts' own Gram
    matrix, in units of the rows of undecided tokens; None where tokens were sampled."""
    tolerance: float
    """The largest difference that passes."""

    def describe(self) -> dict[str, float | str | bool | None]:
        """The outcome for the JSON document.

        Returns:
            Its fields, and ``passed``.
        """
        return {"passed": True, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGram:
    """The inner products of one group's token rows, without advantages."""

    step: int
    """The trainer's step."""
    group_id: str
    """The group."""
    gram: Array
    """Inner products of grad log pi(token), float64, [N, N]."""
    rollouts: NDArray[np.intp]
    """Which rollout of the step each token belongs to, [N]."""
    positions: NDArray[np.intp]
    """Each token's place in its completion, [N]."""
    score_weights: Array
    """The trainer's weight of each token, importance ratio included and advantage not, [N]."""
    logged_weights: Array | None
    """The whole weight of each token in the reward part of the gradient that the optimizer saw: per-token advantages,
    ratio and clip included, [N]; None where no advantages were logged."""
    num_tokens: int
    """Tokens of the group that count in the loss; more than N where they were sampled."""
    num_parameters: int
    """P."""
    slow_parameters: tuple[str, ...]
    """Parameters without a layer rule, computed one backward pass a row."""
    verification: TokenVerification
    """The self-check."""


def measure_tokens(
    policy: Policy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    step: StepGram,
    *,
    most: int = 512,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> tuple[TokenGram, ...]:
    """The Gram matrix of token rows of each group.

    Args:
        policy: The weights that the step's update started from.
        groups: The step's rollouts.
        objective: The trainer's loss.
        step: The same rollouts' Gram matrix: it gives the log-probabilities, and the token rows must add up to it.
        most: Tokens of a group; of more, as many are drawn, each equally likely.
        seed: Decides which tokens are drawn.
        progress: Called as groups are done.

    Returns:
        One matrix per group; none for a group of which no token counts in the loss.
    """
    tell = progress or no_progress
    plan = plan_step(policy, groups, objective, default_batch_tokens(policy.vocab_size))
    score, logged = _weights(plan, step, "score"), None
    if all(advantages is not None for advantages in plan.advantages):
        logged = _weights(plan, step, "logged")
    found = []
    for number, members in enumerate(_members(groups)):
        candidates = [
            TokenRow(sequence=sequence, position=position)
            for sequence in members
            for position in np.flatnonzero(plan.weights[sequence].numpy()).tolist()
        ]
        if candidates:
            rows = sample_tokens(candidates, most, (seed, step.step, number))
            found.append(_measure_group(policy, plan, step, groups[number], rows, len(candidates), score, logged))
        tell(number + 1, len(groups), "groups")
    return tuple(found)


def _measure_group(
    policy: Policy,
    plan: RowPlan,
    step: StepGram,
    group: RolloutGroup,
    rows: Sequence[TokenRow],
    num_tokens: int,
    score: Sequence[Array],
    logged: Sequence[Array] | None,
) -> TokenGram:
    gram, slow = _gram(policy, plan, rows)
    score_weights = np.array([score[row.sequence][row.position] for row in rows])
    rollouts = np.array([row.sequence for row in rows])
    return TokenGram(
        step=step.step,
        group_id=group.group_id,
        gram=gram,
        rollouts=rollouts,
        positions=np.array([row.position for row in rows]),
        score_weights=score_weights,
        logged_weights=None if logged is None else np.array([logged[row.sequence][row.position] for row in rows]),
        num_tokens=num_tokens,
        num_parameters=policy.num_parameters,
        slow_parameters=tuple(sorted(slow)),
        verification=_verify(
            policy,
            gram,
            rows,
            _plain_gram(policy, plan, [rows[number] for number in _checked(len(rows))]),
            _sum_error(gram, rows, score_weights, step) if len(rows) == num_tokens else None,
        ),
    )


def _members(groups: Sequence[RolloutGroup]) -> Iterator[range]:
    """The rollouts of each group, counted within the step.

    Yields:
        Ranges of indices.
    """
    first = 0
    for group in groups:
        yield range(first, first + len(group.rollouts))
        first += len(group.rollouts)


def _weights(plan: RowPlan, step: StepGram, channel: Channel) -> list[Array]:
    """What multiplies each token's grad log pi in a rollout's row, [R][T]."""
    return [
        plan.cotangent(Row(sequence=sequence, channel=channel), torch.tensor(logprobs)).double().numpy()
        for sequence, logprobs in enumerate(step.logprobs)
    ]


def _gram(policy: Policy, plan: RowPlan, rows: Sequence[TokenRow]) -> tuple[Array, frozenset[str]]:
    """Inner products of all rows, and the names of parameters that went the slow way."""
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
    whole = accumulator.gram.cpu().numpy()
    return np.asarray((whole + whole.T) / 2), slow


def _plain_gram(policy: Policy, plan: RowPlan, rows: Sequence[TokenRow]) -> Array:
    """Inner products of a few rows by one plain backward pass each."""
    accumulator = GramAccumulator(len(rows), policy.device)
    chunks = chunks_of(rows, plan.sequences)
    token_loop_rows(policy.model, policy.trainable, chunks, plan.objective.temperature, accumulator.add_rows)
    return np.asarray(accumulator.gram.cpu().numpy())


def _checked(num_rows: int) -> list[int]:
    """First, middle and last row: of different rollouts where there are several."""
    return sorted({0, num_rows // 2, num_rows - 1})


def _sum_error(gram: Array, rows: Sequence[TokenRow], weights: Array, step: StepGram) -> float:
    """How far the sums of the rollouts' tokens are from the rollouts' score vectors."""
    # A token of probability near 1 has a small row, 1 - pi times what an undecided token's would be, and the rollouts'
    # own rows know 1 - pi only to float32; so the scale of a token is its norm over 1 - pi.
    members, place = np.unique([row.sequence for row in rows], return_inverse=True)
    mixing = np.zeros((len(members), len(rows)))
    mixing[place, np.arange(len(rows))] = weights
    difference = np.abs(mixing @ gram @ mixing.T - step.score_gram[np.ix_(members, members)])
    logprobs = np.array([step.logprobs[row.sequence][row.position] for row in rows])
    scale = np.sqrt(np.diag(gram)) / np.clip(-np.expm1(logprobs), np.finfo(np.float32).eps, 1.0)
    return _largest_relative(difference, np.abs(mixing) @ scale)


def _verify(
    policy: Policy, gram: Array, rows: Sequence[TokenRow], plain: Array, sum_error: float | None
) -> TokenVerification:
    checked, limit = _checked(len(rows)), tolerance(policy.dtype)
    row_error = _largest_relative(np.abs(gram[np.ix_(checked, checked)] - plain), np.sqrt(np.diag(plain)))
    for what, error in (("one backward pass a token", row_error), ("the rollouts' own gradients", sum_error or 0.0)):
        if not error <= limit:
            raise VerificationError(
                f"The token rows disagree with {what}: relative difference {error:.2e}, at most {limit:.0e} is "
                f"arithmetic.",
                hint="Please report this with the model's config.json; its numbers must not be used.",
            )
    return TokenVerification(row_error=row_error, num_rows=len(checked), sum_error=sum_error, tolerance=limit)


def _largest_relative(differences: Array, norms: Array) -> float:
    """The largest difference of an inner product over the product of two norms."""
    scale = np.outer(norms, norms)
    return float(np.max(np.divide(differences, scale, out=differences.copy(), where=scale > 0)))

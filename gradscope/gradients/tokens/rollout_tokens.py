"""The tokens of a few rollouts: what each pulls, which way, and how undecided the policy was there.

Shapes: R rollouts of the step, T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.gradients.model.batches import pad_batch, split_rows
from gradscope.gradients.model.forward import completion_entropies
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import RowPlan
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.measure import TokenGram, measure_tokens
from gradscope.metrics.gram.spectrum import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTokens:
    """The tokens of one rollout under the logged advantages; the KL part is left out."""

    group_id: str
    """Its group."""
    sample: int
    """Its index within the group."""
    texts: tuple[str, ...]
    """Each token alone as text, [T]; its id where there is no tokenizer."""
    is_seen: NDArray[np.bool_]
    """Which tokens were measured: not those that the loss masks, nor those that were not drawn, [T]."""
    weights: Array
    """What multiplies grad log pi in the loss: negative where the update makes the token more likely, [T]."""
    norms: Array
    """Norm of each token's gradient, 0 where it was not measured, [T]."""
    shares: Array | None
    """Part of the rollout's gradient along that gradient's own direction, [T]; None where tokens were not drawn."""
    entropies: Array
    """Entropy of the policy where the token was sampled, in nats, [T]."""
    logprobs: Array
    """Log pi of the policy, [T]."""


def measure_rollout_tokens(
    prepared: PreparedStep,
    step: StepGram,
    rollouts: Sequence[int],
    *,
    most: int = 512,
    seed: int = 0,
) -> tuple[RolloutTokens, ...]:
    """Every token of some rollouts of one step.

    Args:
        rollouts: Which rollouts of the step, the most important first.
        most: Most token rows; rollouts are left out from the end, and of a first one that is longer, as many tokens
            are drawn.

    Returns:
        One a rollout, in the order asked for; none where no advantage was logged or no token counts.
    """
    policy, plan = prepared.policy, prepared.plan
    chosen = _as_many(plan, rollouts, most)
    grams = measure_tokens(prepared, step, most=most, seed=seed, rollouts=chosen)
    entropies = policy_entropies(policy, plan, chosen, step.batch_tokens)
    of_rollout = {rollout: gram for gram in grams for rollout in np.unique(gram.table.rollouts).tolist()}
    return tuple(
        _tokens(policy.tokenizer, plan, rollout, of_rollout[rollout], (entropies[rollout], step.logprobs[rollout]))
        for rollout in chosen
        if rollout in of_rollout and of_rollout[rollout].table.logged_weights is not None
    )


def _as_many(plan: RowPlan, rollouts: Sequence[int], most: int) -> list[int]:
    """The first rollouts whose tokens are not too many together; always the first."""
    lengths = np.cumsum([len(plan.sequences[rollout].completion_ids) for rollout in rollouts])
    return list(rollouts[: max(1, int(np.searchsorted(lengths, most, side="right")))])


def policy_entropies(
    policy: MeasuredPolicy, plan: RowPlan, rollouts: Sequence[int], batch_tokens: int
) -> dict[int, Array]:
    """Entropy of the policy at each completion token of some rollouts of a step, in nats.

    Args:
        batch_tokens: Most padded tokens of a forward pass.

    Returns:
        Rollout -> entropies, [T].
    """
    entropies: dict[int, Array] = {}
    lengths = [plan.sequences[rollout].length for rollout in rollouts]
    for part in split_rows(lengths, batch_tokens):
        rows = [rollouts[index] for index in part]
        batch = pad_batch(rows, [plan.sequences[row] for row in rows], policy.device)
        rounds = completion_entropies(policy.model, batch, plan.objective.temperature)
        entropies.update((row, values.double().cpu().numpy()) for row, values in zip(rows, rounds, strict=True))
    return entropies


def _tokens(
    tokenizer: Any, plan: RowPlan, rollout: int, gram: TokenGram, of_policy: tuple[Array, Array]
) -> RolloutTokens:
    """The tokens of one rollout, the policy's entropies and log-probabilities of which are known."""
    sequence, table = plan.sequences[rollout], gram.table
    assert table.logged_weights is not None, "the caller asks for rollouts with logged advantages"
    inside = np.flatnonzero(table.rollouts == rollout)
    positions, factors = table.positions[inside], table.logged_weights[inside]
    rows = factors[:, None] * gram.gram[np.ix_(inside, inside)] * factors
    entropies, logprobs = of_policy
    norms, weights, seen, shares = (np.zeros(len(entropies)) for _ in range(4))
    norms[positions] = np.sqrt(np.clip(np.diag(rows), 0.0, None))
    weights[positions], seen[positions] = factors, 1.0
    total = float(rows.sum())
    shares[positions] = rows.sum(axis=1) / total if total > 0 else 0.0
    whole = len(table.rows) == table.num_tokens and total > 0
    return RolloutTokens(
        group_id=sequence.group_id,
        sample=sequence.sample,
        texts=tuple(token_text(tokenizer, token) for token in sequence.completion_ids),
        is_seen=seen > 0,
        weights=weights,
        norms=norms,
        shares=shares if whole else None,
        entropies=entropies,
        logprobs=logprobs,
    )


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text, special tokens by their name; a part of a character stays its replacement mark."""
    return f"[{token}]" if tokenizer is None else str(tokenizer.decode([token]))

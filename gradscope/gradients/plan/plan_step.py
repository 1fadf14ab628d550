"""From logged groups to the rows of one step: token ids, the trainer's weights, the reference's log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.errors import InputError
from gradscope.gradients.model.batches import PaddedBatch, PaddingSide, pad_batch, split_rows
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.forward import completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.tokenize import TokenSequence, token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import RowPlan, plan_rows
from gradscope.rollouts.types import RolloutGroup


def plan_step(
    policy: MeasuredPolicy, groups: Sequence[RolloutGroup], objective: Objective, budget: TokenBudget
) -> RowPlan:
    """The rows of one step.

    Args:
        policy: The weights that the step's update started from.
        groups: The step's rollouts.
        objective: The trainer's loss.
        budget: Most padded tokens of a forward pass of the reference policy.

    Returns:
        The plan.

    Raises:
        ValueError: The groups are not of one step, or there are none.
        InputError: The trainer's gradient cannot be formed from these rollouts and settings.
    """
    steps = sorted({group.step for group in groups})
    if len(steps) != 1:
        raise ValueError(f"expected the groups of one step, got steps {steps}")
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    reason = objective.reason_against(rollouts) or _router_reason(policy, objective)
    if reason is not None:
        raise InputError(
            f"Step {steps[0]}: the trainer's gradient cannot be formed: {reason}.",
            hint="Give the trainer's arguments with --run-config FILE if these are not the run's.",
        )
    sequences = token_sequences(
        policy,
        groups,
        max_completion_length=objective.max_completion_length,
        chat_template_kwargs=objective.chat_template_kwargs,
    )
    reference = _reference_logprobs(policy, sequences, objective, budget)
    return plan_rows(sequences, rollouts, objective, reference)


def batch_rows(
    policy: MeasuredPolicy, plan: RowPlan, rows: Sequence[int], batch_tokens: int, padding_side: PaddingSide = "right"
) -> list[PaddedBatch]:
    """Some rows of a plan in batches.

    Args:
        policy: The model, for its device.
        plan: The rows.
        rows: Indices of the rows that are wanted.
        batch_tokens: Most padded tokens of a batch.
        padding_side: Where batches are padded.

    Returns:
        Every row in one batch.
    """
    of_row = [plan.sequences[plan.rows[number].sequence] for number in rows]
    return [
        pad_batch([rows[i] for i in part], [of_row[i] for i in part], policy.device, padding_side)
        for part in split_rows([sequence.length for sequence in of_row], batch_tokens)
    ]


def _router_reason(policy: MeasuredPolicy, objective: Objective) -> str | None:
    """Why a mixture of experts whose load-balancing term was left to its configuration has no gradient of its own."""
    config = policy.model.config.get_text_config()
    coefficient = getattr(config, "router_aux_loss_coef", 0.0) if hasattr(config, "output_router_logits") else 0.0
    if not objective.router_loss_of_model or not coefficient:
        return None
    return f"the loss has the model's own load-balancing term, router_aux_loss_coef {coefficient:g}, coupling rollouts"


def _reference_logprobs(
    policy: MeasuredPolicy, sequences: Sequence[TokenSequence], objective: Objective, budget: TokenBudget
) -> list[torch.Tensor] | None:
    if not objective.beta:
        return None
    lengths = [sequence.length for sequence in sequences]

    def attempt(batch_tokens: int) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        with policy.as_reference() as model, torch.no_grad():
            for rows in split_rows(lengths, batch_tokens):
                batch = pad_batch(rows, [sequences[row] for row in rows], policy.device)
                found.update(zip(rows, completion_logprobs(model, batch, objective.temperature), strict=True))
        return [found[row] for row in range(len(sequences))]

    return budget.fit(lengths, attempt)

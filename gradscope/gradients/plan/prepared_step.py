"""One step made ready to measure: its tokens, the trainer's weights and the reference's log-probabilities, made once.

:func:`prepare_step` tokenizes the logged groups, asks the objective for the weight of every token and, where the loss
has a KL term, runs the reference policy. Every kind of rows is then measured from the same :class:`PreparedStep`:
rollouts (``measure_step``), weight matrices (``measure_weight_spectra``), tokens (``measure_tokens``,
``measure_rollout_tokens``). Nothing in it depends on which of them is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch

from gradscope.errors import InputError
from gradscope.gradients.model.batches import BATCH_COST, PaddedBatch, PaddingSide, pad_batch, split_rows
from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
from gradscope.gradients.model.forward import completion_entropies, completion_logprobs
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.model.token_sequence import TokenSequence
from gradscope.gradients.model.tokenize import token_sequences
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.padded_sequences import as_trained, in_frames
from gradscope.gradients.plan.rows import ForwardPasses, RowPlan, plan_rows
from gradscope.gradients.plan.truncation import with_status
from gradscope.gradients.processes.group import num_connected
from gradscope.rollouts.types import Rollout, RolloutGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStep:
    """The rollouts of one step, the weights that they were sampled from, and the rows that they make."""

    step: int
    """The trainer's step."""
    groups: tuple[RolloutGroup, ...]
    """The step's rollouts."""
    policy: MeasuredPolicy
    """The weights that the step's update started from."""
    plan: RowPlan
    """The rows, with the reference's log-probabilities where the loss has a KL term."""
    budget: TokenBudget
    """Most padded tokens of a forward pass; what measuring learns about memory stays in it."""

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts of all groups, in the order of the plan's sequences."""
        return _rollouts(self.groups)

    @property
    def shortest(self) -> TokenSequence:
        """The rollout that costs least to look at."""
        return min(self.plan.sequences, key=lambda sequence: sequence.num_tokens)

    def batches(self, rows: Sequence[int], batch_tokens: int, padding_side: PaddingSide = "right") -> list[PaddedBatch]:
        """Some rows of the plan, by index, each in one batch of at most ``batch_tokens`` padded tokens."""
        of_all = self.plan.lengths
        # on a GPU what waits for other batches leaves it, and several processes put all weights together for each batch
        cost = BATCH_COST if self.policy.device.type == "cpu" and num_connected() == 1 else None
        parts = split_rows([of_all[row] for row in rows], batch_tokens, cost)
        return [self.batch([rows[i] for i in part], padding_side) for part in parts]

    def batch(self, rows: Sequence[int], padding_side: PaddingSide = "right") -> PaddedBatch:
        """Some rows of the plan, by index, in one batch."""
        sequences = [self.plan.sequences[self.plan.rows[row].sequence] for row in rows]
        return pad_batch(rows, sequences, self.policy.device, padding_side)

    def batch_apart(self, rows: Sequence[int]) -> PaddedBatch:
        """Some rows of the plan, by index, in a batch that no engine forms.

        A model that lets a row depend on the rows or on the padding beside it makes another one of it here.

        Returns:
            The rows, shortest first, padded to a length that none has; in a trainer's frame where they stand in it.
        """
        lengths = self.plan.lengths
        order = sorted(rows, key=lambda row: (lengths[row], -row))
        if self.plan.sequences[0].frame is not None:
            return self.batch(order)
        needed = lengths[order[-1]]
        length = next(needed + more for more in count(1) if needed + more not in lengths)
        sequences = [self.plan.sequences[self.plan.rows[row].sequence] for row in order]
        return pad_batch(order, sequences, self.policy.device, length=length)

    def framed(self) -> PreparedStep:
        """The same step in the trainer's padding, whether or not its model was seen to depend on it."""
        return replace(self, plan=replace(self.plan, sequences=in_frames(self.policy, self.plan)))

    def planned_with(self, passes: ForwardPasses) -> PreparedStep:
        """The same step, where forward passes told other numbers, such as those of a lower precision."""
        rollouts = [with_status(rollout, self.policy, self.plan.objective) for rollout in self.rollouts]
        return replace(self, plan=plan_rows(self.plan.sequences, rollouts, self.plan.objective, passes))


def prepare_step(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    budget: TokenBudget | None = None,
    old: Sequence[torch.Tensor] | None = None,
) -> PreparedStep:
    """Everything that measuring one step starts from.

    Args:
        budget: Most padded tokens of a forward pass; None: a guess that is halved while memory runs out.

    Returns:
        The step. With a KL term this runs the reference policy once over all rollouts.

    Raises:
        ValueError: The groups are not of one step, or there are none.
        InputError: The trainer's gradient cannot be formed from these rollouts and settings.
    """
    steps = sorted({group.step for group in groups})
    if len(steps) != 1:
        raise ValueError(f"expected the groups of one step, got steps {steps}")
    rollouts = [with_status(rollout, policy, objective) for rollout in _rollouts(groups)]
    reason = objective.reason_against(rollouts, has_old=old is not None)
    if reason is not None:
        raise InputError(
            f"Step {steps[0]}: the trainer's gradient cannot be formed: {reason}.",
            hint=reason.advice,
            cause=reason.cause,
        )
    budget = budget or TokenBudget(first_batch_tokens(policy))
    sequences = sequences_of(policy, groups, objective)
    passes = ForwardPasses(
        reference=_reference_logprobs(policy, sequences, objective, budget),
        old=old if objective.importance_ratio else None,
        entropies=_entropies(policy, sequences, objective, budget),
    )
    plan = plan_rows(sequences, rollouts, objective, passes)
    return PreparedStep(step=steps[0], groups=tuple(groups), policy=policy, plan=plan, budget=budget)


def sequences_of(
    policy: MeasuredPolicy, groups: Sequence[RolloutGroup], objective: Objective
) -> tuple[TokenSequence, ...]:
    """The rollouts of a step as the trainer's forward pass saw them."""
    sequences = token_sequences(
        policy,
        groups,
        max_completion_length=objective.max_completion_length,
        chat_template_kwargs=objective.chat_template_kwargs,
    )
    return as_trained(policy, sequences)


def step_logprobs(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    objective: Objective,
    budget: TokenBudget,
    *,
    entropies: bool = False,
) -> list[torch.Tensor]:
    """Log-probabilities of a step's completions under some weights, such as those that sampled them.

    Args:
        entropies: Whether each row's entropies follow its log-probabilities.

    Returns:
        Of each completion, [R][T], or [R][2 T] with entropies behind them.
    """
    sequences, look = sequences_of(policy, groups, objective), partial(completion_logprobs, entropies=entropies)
    return _each(policy.model, policy.device, sequences, objective, budget, look)


def _rollouts(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def _reference_logprobs(
    policy: MeasuredPolicy, sequences: Sequence[TokenSequence], objective: Objective, budget: TokenBudget
) -> list[torch.Tensor] | None:
    """Log-probabilities of all completions under the reference policy, [R][T]; None without a KL term."""
    if not objective.has_reference:
        return None
    with policy.as_reference() as model:
        return _each(model, policy.device, sequences, objective, budget, completion_logprobs)


def _entropies(
    policy: MeasuredPolicy, sequences: Sequence[TokenSequence], objective: Objective, budget: TokenBudget
) -> list[torch.Tensor] | None:
    """Entropies at all completion tokens, [R][T]; None where no token is masked by them."""
    if objective.top_entropy_quantile >= 1.0:
        return None
    return _each(policy.model, policy.device, sequences, objective, budget, completion_entropies)


def _each(
    model: Any,
    device: torch.device,
    sequences: Sequence[TokenSequence],
    objective: Objective,
    budget: TokenBudget,
    look: Callable[[Any, PaddedBatch, float], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """Something of every completion token, by forward passes alone, [R][T]."""
    lengths = [sequence.length for sequence in sequences]

    def attempt(batch_tokens: int) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for rows in split_rows(lengths, batch_tokens):
                batch = pad_batch(rows, [sequences[row] for row in rows], device)
                found.update(zip(rows, look(model, batch, objective.temperature), strict=True))
        return [found[row] for row in range(len(sequences))]

    return budget.fit(lengths, attempt)

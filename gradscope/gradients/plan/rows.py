"""Gradient rows of a step: which sequence, which part of the loss, and the weight of each token's grad log pi.

A row is sum_t v_t grad log pi(token t). Its channel says what v is: ``score`` (w_it, the score vector, without any
advantage), ``kl`` (the KL term) or ``logged`` (the reward part with per-token advantages or clipped ratios, where no
single advantage factors out).

Shapes: R rollouts, T tokens of a completion, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gradscope.errors import InputError
from gradscope.gradients.model.tokenize import TokenSequence
from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.types import Rollout

Channel = Literal["score", "kl", "logged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the gradient matrix."""

    sequence: int
    """Index of its sequence within the step."""
    channel: Channel
    """Which part of the loss it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """All rows of one step and how each weighs its tokens."""

    sequences: tuple[TokenSequence, ...]
    """The step's rollouts, [R]."""
    rows: tuple[Row, ...]
    """The rows, channel by channel, [N]."""
    objective: Objective
    """The trainer's loss."""
    weights: tuple[torch.Tensor, ...]
    """w_it per sequence, zero where a token is masked, [R][T]."""
    advantages: tuple[torch.Tensor | None, ...]
    """Logged advantage per token, per sequence; None where it was not logged, [R][T]."""
    sampled: tuple[torch.Tensor | None, ...]
    """Log-probabilities at which the tokens were sampled, for the importance ratio, [R][T]."""
    reference: tuple[torch.Tensor, ...] | None
    """Log-probabilities under the reference policy, for the KL term; None without one, [R][T]."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row's sequence, [N]."""
        return [self.sequences[row.sequence].length for row in self.rows]

    def index(self, channel: Channel) -> dict[int, int]:
        """Sequence -> row of a channel; empty where the plan lacks it."""
        return {row.sequence: index for index, row in enumerate(self.rows) if row.channel == channel}

    def cotangent(self, row: Row, logprobs: torch.Tensor) -> torch.Tensor:
        """The weight of each token's grad log pi in a row, [T], at the policy's detached log-probabilities."""
        weights = self.weights[row.sequence].to(logprobs)
        if row.channel == "kl":
            return weights * self._kl_slope(row.sequence, logprobs)
        ratio = self._ratio(row.sequence, logprobs)
        if row.channel == "score":
            return weights * ratio
        advantages = self._advantages(row.sequence, logprobs)
        return -weights * advantages * ratio * self._inside_clip(ratio, advantages)

    def gradient(self, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
        """The same of a rollout's whole gradient as the optimizer saw it: logged advantage and KL part, [T]."""
        total = self.cotangent(Row(sequence=sequence, channel="logged"), logprobs)
        if self.reference is not None:
            total = total + self.cotangent(Row(sequence=sequence, channel="kl"), logprobs)
        return total

    def _advantages(self, sequence: int, like: torch.Tensor) -> torch.Tensor:
        advantages = self.advantages[sequence]
        if advantages is None:
            of = self.sequences[sequence]
            raise InputError(
                f"Rollout {of.sample} of group {of.group_id} has no logged advantage.",
                hint="Name a formulation to compute advantages from rewards.",
            )
        return advantages.to(like)

    def _ratio(self, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
        sampled = self.sampled[sequence]
        if not self.objective.importance_ratio or sampled is None:
            return torch.ones_like(logprobs)
        return torch.exp(logprobs - sampled.to(logprobs))

    def _inside_clip(self, ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        """1 where the ratio carries a gradient: min(ratio A, clip(ratio) A) is flat where the clip wins."""
        objective = self.objective
        above = 1 + objective.epsilon_high
        delta = float("inf") if objective.delta is None else objective.delta
        clipped = (advantages > 0) & (ratio > min(above, delta))
        clipped |= (advantages < 0) & ((ratio < 1 - objective.epsilon_low) | (ratio > max(above, delta)))
        return (~clipped).to(ratio)

    def _kl_slope(self, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
        """Derivative by log pi of beta * kl, kl = exp(d) - d - 1, d = log reference - log pi (times the ratio)."""
        assert self.reference is not None, "a plan with kl rows has reference log-probabilities"
        behind = self.reference[sequence].to(logprobs) - logprobs
        if self.objective.use_bias_correction_kl:
            return -self.objective.beta * self._ratio(sequence, logprobs) * behind
        return self.objective.beta * (1 - torch.exp(behind))


def plan_rows(
    sequences: Sequence[TokenSequence],
    rollouts: Sequence[Rollout],
    objective: Objective,
    reference: Sequence[torch.Tensor] | None = None,
) -> RowPlan:
    """The rows that a step needs.

    Args:
        reference: Log-probabilities under the reference policy, needed where the loss has a KL term, [R][T].

    Returns:
        The plan: score rows always, KL rows with a KL term, logged rows where no single advantage factors out.

    Raises:
        ValueError: The loss has a KL term and there are no reference log-probabilities.
    """
    if objective.beta and reference is None:
        raise ValueError("a loss with a KL term needs the reference policy's log-probabilities")
    masks = [objective.counted(rollout, of.mask) for rollout, of in zip(rollouts, sequences, strict=True)]
    weights = tuple(
        torch.tensor(mask, dtype=torch.float64) * weight
        for mask, weight in zip(masks, objective.token_weights(masks), strict=True)
    )
    advantages = tuple(_token_advantages(rollout, of) for rollout, of in zip(rollouts, sequences, strict=True))
    channels: list[Channel] = ["score"]
    if objective.beta:
        channels.append("kl")
    by_token = objective.importance_ratio or any(rollout.token_advantages is not None for rollout in rollouts)
    if by_token and all(advantage is not None for advantage in advantages):
        channels.append("logged")
    return RowPlan(
        sequences=tuple(sequences),
        rows=tuple(Row(sequence=i, channel=channel) for channel in channels for i in range(len(sequences))),
        objective=objective,
        weights=weights,
        advantages=advantages,
        sampled=tuple(_sampled(rollout, of, objective) for rollout, of in zip(rollouts, sequences, strict=True)),
        reference=tuple(reference) if objective.beta and reference is not None else None,
    )


def _token_advantages(rollout: Rollout, sequence: TokenSequence) -> torch.Tensor | None:
    num_tokens = len(sequence.completion_ids)
    if rollout.token_advantages is not None:
        _require_length("advantages", len(rollout.token_advantages), sequence)
        return torch.tensor(rollout.token_advantages, dtype=torch.float64)
    if rollout.advantage is None:
        return None
    return torch.full((num_tokens,), rollout.advantage, dtype=torch.float64)


def _sampled(rollout: Rollout, sequence: TokenSequence, objective: Objective) -> torch.Tensor | None:
    if rollout.logprobs is None or not objective.importance_ratio:
        return None
    _require_length("log-probabilities", len(rollout.logprobs), sequence)
    return torch.tensor(rollout.logprobs, dtype=torch.float64)


def _require_length(values: str, length: int, sequence: TokenSequence) -> None:
    if length != len(sequence.completion_ids):
        raise InputError(
            f"Rollout {sequence.sample} of group {sequence.group_id} has {length} {values} "
            f"and {len(sequence.completion_ids)} completion tokens.",
            hint="Log exact completion ids; per-token values cannot be matched to re-tokenized text.",
        )

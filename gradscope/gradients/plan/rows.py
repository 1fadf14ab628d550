"""Gradient rows of a step: which sequence, which part of the loss, and the weight of each token's grad log pi.

A row is sum_t v_t grad log pi(token t). Its channel says what v is: ``score`` (the score vector, without any advantage
or clip), ``kl`` (the KL term), ``logged`` (the reward part where no single advantage factors out: per-token advantages,
ratios) or ``entropy`` (the entropy bonus, whose v weighs grad of the tokens' entropies instead).

Shapes: R rollouts, T tokens of a completion, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from msgspec import Struct

from gradscope.errors import InputError
from gradscope.gradients.model.batches import TokenSequence
from gradscope.gradients.plan.losses import Completion, factors_out, kl_slope, reward_slope, sent
from gradscope.gradients.plan.objective import Objective
from gradscope.rollouts.groups import Rollout

Channel = Literal["score", "kl", "logged", "entropy"]
EXTRA_CHANNELS: tuple[Channel, ...] = ("kl", "entropy")  # channels of the loss that no advantage reaches
_ENTROPY_ROUNDING = 1e-5
"""Entropies that differ by less, relative to the larger of them and 1, may be equal: float32 moves them by 1e-6."""


class Row(Struct, frozen=True, kw_only=True):
    """One row of the gradient matrix."""

    sequence: int  # index of its sequence within the step
    channel: Channel  # which part of the loss it is
    weights: torch.Tensor | None = None
    """Weights of its sequence's outputs that replace the channel's; None: those of the channel."""


class ForwardPasses(Struct, frozen=True, kw_only=True):
    """Results of forward passes before the rows for each completion; None where the loss does not need them."""

    reference: Sequence[torch.Tensor] | None = None
    """Log-probabilities under the reference policy, for the KL term, [R][T]."""
    old: Sequence[torch.Tensor] | None = None
    """Log-probabilities under the weights that sampled a reused batch, where they were not logged, [R][T]."""
    entropies: Sequence[torch.Tensor] | None = None  # entropies at the policy itself, [R][T]


NO_PASSES = ForwardPasses()  # where nothing but the policy's own log-probabilities counts


class RowPlan(Struct, frozen=True, kw_only=True):
    """All rows of one step and how each weighs its tokens."""

    sequences: tuple[TokenSequence, ...]  # the step's rollouts, [R]
    rows: tuple[Row, ...]  # the rows, channel by channel, [N]
    objective: Objective
    completions: tuple[Completion, ...]  # the loss's inputs for each completion, [R]
    weights: tuple[torch.Tensor, ...]  # w_it of the reward part per sequence, zero where a token is masked, [R][T]
    kl_weights: tuple[torch.Tensor, ...]  # the same of the KL term, beta included, [R][T]
    entropy_weights: tuple[torch.Tensor, ...] | None  # the same of the tokens' entropies; None without a bonus, [R][T]
    advantages: tuple[torch.Tensor | None, ...]
    """Logged advantage per token, per sequence; None where it was not logged, [R][T]."""
    num_ties: int = 0
    """Tokens whose entropy lies within rounding of the quantile: which of them the trainer masked is not known."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row's sequence, [N]."""
        return [self.sequences[row.sequence].length for row in self.rows]

    @property
    def has_entropies(self) -> bool:
        """Whether rows weigh the entropies of tokens too: outputs are then log-probabilities, then entropies, [2 T]."""
        return self.entropy_weights is not None

    def index(self, channel: Channel) -> dict[int, int]:
        """Sequence -> row of a channel; empty where the plan lacks it."""
        return {row.sequence: index for index, row in enumerate(self.rows) if row.channel == channel}

    def logprobs(self, sequence: int, outputs: torch.Tensor) -> torch.Tensor:
        """The log-probabilities among a sequence's outputs, [T]."""
        return outputs[: len(self.sequences[sequence].completion_ids)]

    def cotangent(self, row: Row, outputs: torch.Tensor) -> torch.Tensor:
        """A row's weights of its sequence's outputs, at the detached outputs: [T], or [2 T] with entropies."""
        if row.weights is not None:
            return sent(row.weights, outputs)
        logprobs = self.logprobs(row.sequence, outputs)
        if row.channel == "entropy":
            assert self.entropy_weights is not None, "a plan with entropy rows has their weights"
            return torch.cat([torch.zeros_like(logprobs), sent(self.entropy_weights[row.sequence], logprobs)])
        slope = self._slope(row, logprobs)
        return torch.cat([slope, slope.new_zeros(len(outputs) - len(slope))])

    def gradient(self, sequence: int, outputs: torch.Tensor) -> torch.Tensor:
        """The same for a rollout's gradient as the optimizer saw it, with the channels that no advantage multiplies."""
        total = self.cotangent(Row(sequence=sequence, channel="logged"), outputs)
        for channel in EXTRA_CHANNELS:
            if self.index(channel):
                total = total + self.cotangent(Row(sequence=sequence, channel=channel), outputs)
        return total

    def _slope(self, row: Row, logprobs: torch.Tensor) -> torch.Tensor:
        """The weights of grad log pi, [T]."""
        objective, completion = self.objective, self.completions[row.sequence].to(logprobs)
        if row.channel == "kl":
            weights = sent(self.kl_weights[row.sequence], logprobs)
            return kl_slope(objective, completion, logprobs, weights, corrected=objective.use_bias_correction_kl)
        weights, is_score = sent(self.weights[row.sequence], logprobs), row.channel == "score"
        sequence, advantages = self.sequences[row.sequence], None if is_score else self.advantages[row.sequence]
        if advantages is None and not is_score:
            raise InputError(
                f"Rollout {sequence.sample} of group {sequence.group_id} has no logged advantage.",
                hint="Name a formulation to compute advantages from rewards.",
            )
        advantages = None if advantages is None else sent(advantages, logprobs)
        slope = reward_slope(
            objective.loss,
            objective,
            completion,
            logprobs,
            weights,
            advantages,
            correction=objective.correction,
            off_policy_threshold=objective.off_policy_threshold,
        )
        return -slope if is_score else slope


def plan_rows(
    sequences: Sequence[TokenSequence],
    rollouts: Sequence[Rollout],
    objective: Objective,
    passes: ForwardPasses = NO_PASSES,
) -> RowPlan:
    """The rows that a step needs.

    Score rows always, KL rows with a KL term, entropy rows with a bonus, logged rows where no single advantage factors
    out.

    Raises:
        ValueError: The loss needs a forward pass that is not among them.
    """
    if objective.has_reference and passes.reference is None:
        raise ValueError("a loss with a KL term needs the reference policy's log-probabilities")
    if objective.top_entropy_quantile < 1.0 and passes.entropies is None:
        raise ValueError("a loss that masks tokens by their entropy needs their entropies")
    masks = [objective.counted(rollout, sequence.mask) for rollout, sequence in zip(rollouts, sequences, strict=True)]
    counted = [torch.tensor(mask, dtype=torch.float64) for mask in masks]
    before_truncation = [sequence.mask for sequence in sequences]
    token_weights = objective.token_weights(masks, before_truncation)
    num_tokens = objective.num_tokens(masks, before_truncation)
    weights = tuple(mask * weight for mask, weight in zip(counted, token_weights, strict=True))
    entropy_masks, num_ties = high_entropy(counted, passes.entropies, objective.top_entropy_quantile)
    advantages = tuple(map(_token_advantages, rollouts, sequences))
    channels: list[Channel] = ["score"]
    if objective.beta:
        channels.append("kl")
    if objective.entropy_coef:
        channels.append("entropy")
    # whether every rollout's reward part is its score vector times minus its advantage, whatever that is
    advantage_factors_out = (
        (objective.correction is None or not objective.loss.corrects_itself)
        and not objective.importance_ratio
        and objective.off_policy_threshold is None
        and factors_out(objective.loss, objective)
    )
    by_token = not advantage_factors_out or any(rollout.token_advantages is not None for rollout in rollouts)
    if by_token and all(advantage is not None for advantage in advantages):
        channels.append("logged")
    completions = []
    for index, (rollout, sequence, mask) in enumerate(zip(rollouts, sequences, counted, strict=True)):
        logged = None
        if rollout.logprobs is not None and objective.looks_at_logged:
            _require_length("log-probabilities", len(rollout.logprobs), sequence)
            logged = torch.tensor(rollout.logprobs, dtype=torch.float64)
        sampler = logged if objective.needs_sampler else None
        old = None
        if objective.importance_ratio:
            old = passes.old[index] if passes.old is not None else logged if sampler is None else None
        reference = passes.reference[index] if objective.beta and passes.reference is not None else None
        reference = logged if objective.kl_to_sampler else reference
        completions.append(Completion(counted=mask, old=old, sampler=sampler, reference=reference))
    return RowPlan(
        sequences=tuple(sequences),
        rows=tuple(Row(sequence=i, channel=channel) for channel in channels for i in range(len(sequences))),
        objective=objective,
        completions=tuple(completions),
        weights=tuple(weight * keep for weight, keep in zip(weights, entropy_masks, strict=True)),
        kl_weights=tuple(objective.beta * weight for weight in weights),
        entropy_weights=_entropy_weights(objective, counted, entropy_masks, weights, num_tokens)
        if objective.entropy_coef
        else None,
        advantages=advantages,
        num_ties=num_ties,
    )


def high_entropy(
    counted: Sequence[torch.Tensor], entropies: Sequence[torch.Tensor] | None, share: float
) -> tuple[list[torch.Tensor], int]:
    """Which tokens keep their reward part, [R][T]: those whose entropy reaches the batch's quantile, in float32 as TRL.

    With them the number of tokens of which rounding decides that, where it is more than the one that is the quantile.

    >>> mask = torch.ones(2, dtype=torch.float64)
    >>> masks, num_ties = high_entropy([mask, mask], [torch.tensor([0.1, 0.9]), torch.tensor([0.5, 0.2])], 0.5)
    >>> [row.tolist() for row in masks], num_ties
    ([[0.0, 1.0], [1.0, 0.0]], 0)
    >>> high_entropy([torch.ones(3)], [torch.tensor([0.1, 0.9, 0.9000001])], 0.3)[1]
    2
    """
    if entropies is None or share >= 1.0:
        return [torch.ones_like(mask) for mask in counted], 0
    rows = [row.float().cpu() for row in entropies]
    gathered = torch.cat([row[mask.bool()] for row, mask in zip(rows, counted, strict=True)])
    if not gathered.numel():
        return [torch.zeros_like(mask) for mask in counted], 0
    threshold = torch.quantile(gathered, 1.0 - share)
    num_near = int(((gathered - threshold).abs() <= _ENTROPY_ROUNDING * threshold.clamp(min=1.0)).sum())
    masks = [(row >= threshold).to(mask) for row, mask in zip(rows, counted, strict=True)]
    return masks, num_near if num_near > 1 else 0


def _entropy_weights(
    objective: Objective,
    counted: Sequence[torch.Tensor],
    unmasked: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    num_tokens: int,
) -> tuple[torch.Tensor, ...]:
    """The bonus is a mean over the tokens that it acts on; before TRL 1.10 some losses divided it as the rest."""
    if objective.loss.averages_entropy:
        return tuple(-objective.entropy_coef * weight for weight in weights)
    acting = [mask * selected for mask, selected in zip(counted, unmasked, strict=True)]
    divisor = float(sum(mask.sum() for mask in acting))
    if objective.loss.by_all_tokens and objective.trl.is_before(1, 10):
        divisor = float(num_tokens)
    return tuple(-objective.entropy_coef / max(divisor, 1.0) * mask for mask in acting)


def _token_advantages(rollout: Rollout, sequence: TokenSequence) -> torch.Tensor | None:
    if rollout.token_advantages is not None:
        _require_length("advantages", len(rollout.token_advantages), sequence)
        return torch.tensor(rollout.token_advantages, dtype=torch.float64)
    if rollout.advantage is None:
        return None
    return torch.full((len(sequence.completion_ids),), rollout.advantage, dtype=torch.float64)


def _require_length(values: str, length: int, sequence: TokenSequence) -> None:
    if length != len(sequence.completion_ids):
        raise InputError(
            f"Rollout {sequence.sample} of group {sequence.group_id} has {length} {values} "
            f"and {len(sequence.completion_ids)} completion tokens.",
            hint="Log exact completion ids; per-token values cannot be matched to re-tokenized text.",
        )

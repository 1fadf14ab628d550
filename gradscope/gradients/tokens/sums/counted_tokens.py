"""Every token of a step that counts in its loss, in one table: what is known of it, and what the loss weighs it by.

Shapes: R rollouts of the step, N tokens that count, J groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import Row, RowPlan
from gradscope.gradients.plan.slopes import Completion, reward_slope
from gradscope.gradients.step.step_gram import StepGram
from gradscope.gradients.tokens.rollout_tokens import policy_entropies
from gradscope.metrics.gram.spectrum import Array

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTokens:
    """The tokens, rollout after rollout."""

    rollouts: Index
    """Which rollout of the step each is of, [N]."""
    groups: Index
    """Which group, from 0 to J - 1, [N]."""
    positions: Index
    """Its place in its completion, from 0, [N]."""
    turns: Index
    """Its turn, from 0: a turn is a stretch of sampled tokens, and ends where a tool or an environment writes, [N]."""
    logprobs: Array
    """Log pi of the policy, [N]."""
    entropies: Array
    """The policy's entropy where it was sampled, in nats, [N]."""
    sampler: Array | None
    """The sampler's log-probability, the policy's own where it is not a number, [N]; None unless every rollout has
    them."""
    reference: Array | None
    """Log pi of the reference policy, [N]; None without a KL term."""
    advantages: Array
    """[N]."""
    weights: Array
    """What multiplies grad log pi in the reward part of the gradient that the optimizer saw, [N]."""
    plain: Array
    """The same at ratio 1: without importance ratio, clip and correction, as if the policy itself had sampled, [N]."""
    lengths: tuple[int, ...]
    """Completion tokens of every rollout, those that do not count among them, [R]."""

    @property
    def num_groups(self) -> int:
        """J, of the groups that have a token."""
        return int(self.groups.max(initial=-1)) + 1


def counted_tokens(prepared: PreparedStep, step: StepGram) -> CountedTokens | None:
    """The tokens of a step.

    Args:
        step: The step's Gram matrix, for the log-probabilities.

    Returns:
        The table; None where the gradient is zero, not every token has a logged advantage, or none counts.
    """
    if step.policy_gram is None or not step.policy_gram.sum() > 0:
        return None
    plan = prepared.plan
    counted = [completion.counted.bool().numpy() for completion in plan.completions]
    if any(advantages is None for advantages in plan.advantages) or not any(mask.any() for mask in counted):
        return None
    entropies = policy_entropies(prepared.policy, plan, range(len(counted)), step.batch_tokens)
    of_group = [number for number, group in enumerate(prepared.groups) for _ in group.rollouts]

    def gathered(values: Callable[[int], Array | Index]) -> Array:
        return np.concatenate([np.asarray(values(at), dtype=np.float64)[mask] for at, mask in enumerate(counted)])

    def numbered(values: Callable[[int], Array | Index]) -> Index:
        return gathered(values).astype(np.int64)

    logprobs = [torch.tensor(own) for own in step.logprobs]
    sampled = [_sampled(rollout.logprobs, own) for rollout, own in zip(prepared.rollouts, step.logprobs, strict=True)]
    has_reference = plan.objective.has_reference  # a KL term to the sampler has none
    reference = [completion.reference if has_reference else None for completion in plan.completions]
    return CountedTokens(
        rollouts=numbered(lambda at: np.full(len(counted[at]), at)),
        groups=np.unique(numbered(lambda at: np.full(len(counted[at]), of_group[at])), return_inverse=True)[1],
        positions=numbered(lambda at: np.arange(len(counted[at]))),
        turns=numbered(lambda at: _turns(plan.sequences[at].mask)),
        logprobs=gathered(lambda at: step.logprobs[at]),
        entropies=gathered(lambda at: entropies[at]),
        sampler=None if any(one is None for one in sampled) else gathered(lambda at: _known(sampled[at])),
        reference=None if any(one is None for one in reference) else gathered(lambda at: _numbers(reference[at])),
        advantages=gathered(lambda at: _numbers(plan.advantages[at])),
        weights=gathered(lambda at: _numbers(plan.cotangent(Row(sequence=at, channel="logged"), logprobs[at]))),
        plain=gathered(lambda at: _numbers(_at_ratio_one(plan, at, logprobs[at]))),
        lengths=tuple(map(len, counted)),
    )


def _at_ratio_one(plan: RowPlan, sequence: int, logprobs: torch.Tensor) -> torch.Tensor:
    """The slope of the loss of one completion where every ratio is 1, [T]."""
    advantages = plan.advantages[sequence]
    assert advantages is not None, "the caller asks for steps with logged advantages"
    alone = Completion(counted=plan.completions[sequence].counted.to(logprobs))
    return reward_slope(
        plan.objective.loss,
        plan.objective,
        alone,
        logprobs,
        plan.weights[sequence].to(logprobs),
        advantages.to(logprobs),
    )


def _sampled(logged: Sequence[float] | None, own: Array) -> Array | None:
    """The sampler's numbers, in place of which the policy's own stand where it gave none."""
    if logged is None or len(logged) != len(own):
        return None
    values = np.array(logged, dtype=np.float64)
    return np.where(np.isfinite(values), values, own)


def _known(values: Array | None) -> Array:
    assert values is not None, "the caller looks before"
    return values


def _numbers(values: torch.Tensor | None) -> Array:
    assert values is not None, "the caller looks before"
    return np.asarray(values.double().cpu().numpy(), dtype=np.float64)


def _turns(mask: Sequence[bool]) -> Index:
    """The turn of each token of a completion; tokens that were not sampled have that of the turn before."""
    sampled = np.array(mask, dtype=np.int64)
    return np.asarray(np.maximum(np.cumsum(np.diff(sampled, prepend=0) == 1) - 1, 0))

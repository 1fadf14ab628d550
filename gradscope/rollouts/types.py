"""What was sampled: rollouts and the groups they form.

Shapes: P tokens of a prompt, T of a completion, G rollouts of a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["completed", "truncated", "error", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One sequence of tokens that was trained on, cut where the model starts to write."""

    prompt_ids: tuple[int, ...]
    """Everything before the first sampled token, [P]."""
    completion_ids: tuple[int, ...]
    """From the first sampled token on, [T]; a tool's tokens between two turns are among them."""
    mask: tuple[bool, ...]
    """Which of them were sampled, [T]."""
    logprobs: tuple[float, ...] | None = None
    """The sampler's log-probabilities, [T], 0 where not sampled; None unless every sampled token has one."""
    token_advantages: tuple[float, ...] | None = None
    """Advantages, [T], 0 where not sampled; None unless every sampled token has one."""
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probabilities, [T], 0 where not sampled, NaN where there is none; None unless there are T."""
    entropies: tuple[float, ...] | None = None
    """Entropies of the trainer's policy, [T], likewise."""

    @property
    def advantage(self) -> float | None:
        """The one advantage that all sampled tokens have; None where they differ or have none."""
        if self.token_advantages is None:
            return None
        levels = {value for value, sampled in zip(self.token_advantages, self.mask, strict=True) if sampled}
        return levels.pop() if len(levels) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled completion with its reward."""

    group_id: str
    """The group it belongs to; unique within a run."""
    sample: int
    """Index within its group, from 0."""
    row: int
    """Row within the step, from 0, in the order of the log."""
    prompt: str
    """The prompt's text as logged (for a conversation: the contents of its messages, joined by newlines)."""
    completion: str
    """The completion's text as logged."""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """The prompt as chat messages, where it was logged so."""
    prompt_ids: tuple[int, ...] | None = None
    """Exact prompt token ids; None where only text was logged."""
    completion_ids: tuple[int, ...] | None = None
    """Exact completion token ids, end-of-sequence included where it was sampled; None where only text was logged."""
    reward: float | None
    """The scalar reward; None where it is missing or not a finite number."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Reward per reward function, unweighted."""
    token_rewards: tuple[float, ...] | None = None
    """Reward per completion token, [T]."""
    advantage: float | None = None
    """The advantage that the optimizer saw."""
    token_advantages: tuple[float, ...] | None = None
    """Advantage per completion token, [T], where the trainer used one per token."""
    logprobs: tuple[float, ...] | None = None
    """The sampler's log-probability of each completion token, [T]."""
    trainer_logprobs: tuple[float, ...] | None = None
    """The trainer's log-probability of each completion token before the step's first update, [T]; NaN where the log has
    none that is a number."""
    entropies: tuple[float, ...] | None = None
    """Entropy of the trainer's policy where each completion token was sampled, in nats, [T]; NaN as above."""
    mask: tuple[bool, ...] | None = None
    """Which completion tokens count in the loss, [T]; None: all."""
    status: Status = "unknown"
    """How the completion ended."""
    seconds: float | None = None
    """How long it took to generate; None where the log does not time its rollouts."""
    policy: str | None = None
    """Name of the policy that sampled it, where a log pools several; None: the only one."""
    policy_versions: tuple[int, int] | None = None
    """How many updates the weights that sampled its first and its last token had had; None where the log does not
    say. Weights that are fresh at step N have had N - 1."""
    earlier: tuple[Tokens, ...] = ()
    """The sequences before its own, where it was trained on as several: branches of a trace, outputs of a session. They
    share its reward."""

    @property
    def sequences(self) -> tuple[Rollout, ...]:
        """Each of its sequences as a rollout of one, its own last."""
        if not self.earlier:
            return (self,)
        names = [field.name for field in dataclasses.fields(Tokens)]
        own = dataclasses.replace(self, earlier=())
        return (
            *(dataclasses.replace(own, **{name: getattr(each, name) for name in names}) for each in self.earlier),
            own,
        )

    @property
    def num_tokens(self) -> int | None:
        """Completion tokens of all its sequences; None where only text was logged."""
        if self.completion_ids is None:
            return None
        return len(self.completion_ids) + sum(len(each.completion_ids) for each in self.earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """The rollouts of one prompt at one step."""

    step: int
    """The trainer's step: these rollouts feed update number ``step`` (counted from 1)."""
    group_id: str
    """Unique within the run."""
    prompt_id: str
    """The same for every group of the same prompt: prompts, not groups, are the unit of resampling."""
    rollouts: tuple[Rollout, ...]
    """At least one."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Scalar rewards, [G], missing ones as None."""
        return tuple(rollout.reward for rollout in self.rollouts)

    @property
    def size(self) -> int:
        """Number of rollouts, G."""
        return len(self.rollouts)


def group_name(step: int, group: str) -> str:
    """A group's name within its run: its step (0 where the log has none) and what its rows share within the step.

    Returns:
        The name; without a step the group alone.

    Example:
        >>> group_name(3, "a"), group_name(0, "a")
        ('3:a', 'a')
    """
    return f"{step}:{group}" if step else group

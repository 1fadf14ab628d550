"""Advantages while a run is trained: step after step, with what a formulation remembers or wants to know of tokens.

Every formulation that a run can be trained with is an :class:`OnlineAdvantage`; here are those that need no torch. Most
are arithmetic on the step's rewards; the others say what else they read and, where they remember something, hand it to
the checkpoint and take it back.

Legend: N groups of a step, G rollouts of a group, which may differ from group to group, R rollouts of a step, T tokens
of a completion, H width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import compute_step_advantages, formulation
from gradscope.advantages.token import COMPENSATION_LIMIT, compensation, return_to_go

Array = NDArray[np.float64]

_MEMORY = 0.5
"""How much of the running mean of ``spo`` stays when its prompt is seen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a formulation must keep to go on as it was, plain enough for JSON and safetensors."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    """Single numbers by name."""
    arrays: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Arrays by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollouts:
    """What the advantages of a step may depend on."""

    rewards: Sequence[Array]
    """Scalar rewards by group, [N][G]."""
    prompt_ids: tuple[str, ...]
    """The prompt of each group, [N]."""
    logprobs: Sequence[Sequence[float]]
    """Log-probability of each sampled token, [R][T]."""
    max_logprobs: Sequence[Sequence[float]]
    """Log-probability of the most likely token at each place, [R][T]."""
    token_rewards: Sequence[Sequence[float]] | None = None
    """Reward of each token, [R][T]; None where the task does not grade steps."""
    states: Sequence[NDArray[np.float32]] | None = None
    """The policy's last hidden state at each token, [R][T, H]; None unless the formulation reads them."""

    def __post_init__(self) -> None:
        if any(np.ndim(group) != 1 or not np.all(np.isfinite(group)) for group in self.rewards):
            raise ValueError("the rewards of a step are finite and one row a group")


class OnlineAdvantage:
    """A formulation that needs the rewards of the step alone; the others override it.

    Args:
        name: The formulation's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """The formulation's name."""

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, in the order of its rollouts: a number each, [R][1], or one a token, [R][T]."""
        return _by_rollout(compute_step_advantages(self.name, step.rewards))

    @property
    def by_token(self) -> bool:
        """Whether each token has an advantage of its own."""
        return formulation(self.name).scope == "token"

    @property
    def remembers(self) -> bool:
        """Whether a run must keep its memory to go on as it was."""
        return formulation(self.name).scope == "run"

    @property
    def reads_states(self) -> bool:
        """Whether it reads the policy's hidden states."""
        return False

    @property
    def metrics(self) -> dict[str, float]:
        """What it has to say of the last step, for the run's metrics."""
        return {}

    @property
    def memory(self) -> Memory:
        """What it remembers."""
        return Memory()

    def recall(self, memory: Memory) -> None:
        """Go on from an earlier :attr:`memory`; ``ValueError`` or ``KeyError`` where it is not of this formulation."""


class RunningMean(OnlineAdvantage):
    """``spo``: the reward minus what its prompt used to earn.

    A group of equal rewards pushes when that differs from the prompt's past. A prompt's first baseline is the mean of
    the step that it comes up in.
    """

    def __init__(self) -> None:
        super().__init__("spo")
        self._means: dict[str, float] = {}

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1]; remembers its rewards."""
        first = float(np.concatenate(step.rewards).mean())
        baseline = [self._means.get(prompt, first) for prompt in step.prompt_ids]
        for prompt, before, rewards in zip(step.prompt_ids, baseline, step.rewards, strict=True):
            self._means[prompt] = float(_MEMORY * before + (1 - _MEMORY) * rewards.mean())
        return _by_rollout([rewards - before for rewards, before in zip(step.rewards, baseline, strict=True)])

    @property
    def memory(self) -> Memory:
        """Prompt -> running mean of its rewards."""
        return Memory(numbers=dict(self._means))

    def recall(self, memory: Memory) -> None:
        """Go on from earlier running means by prompt."""
        self._means = dict(memory.numbers)


class PerStep(OnlineAdvantage):
    """``per_step``: what a token and those after it earn, against the group."""

    def __init__(self) -> None:
        super().__init__("per_step")

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][T].

        Returns:
            One number a token.

        Raises:
            ValueError: The step has no token rewards.
        """
        if step.token_rewards is None:
            raise ValueError("per_step needs a reward of every token")
        ends = np.cumsum([len(group) for group in step.rewards])
        groups = (step.token_rewards[end - len(group) : end] for group, end in zip(step.rewards, ends, strict=True))
        return tuple(advantage for group in groups for advantage in return_to_go(group))


class Compensation(OnlineAdvantage):
    """``compensation``: the group's advantage, weighed up where the policy was unsure.

    Args:
        name: The formulation's name.
        limit: The largest factor.
    """

    def __init__(self, name: str, limit: float) -> None:
        super().__init__(name)
        self._limit = limit

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, one number a token, [R][T]."""
        advantages = np.concatenate(compute_step_advantages("grpo", step.rewards))
        return tuple(
            advantage * compensation(taken, top, limit=self._limit)
            for advantage, taken, top in zip(advantages, step.logprobs, step.max_logprobs, strict=True)
        )


def online_advantage(name: str) -> OnlineAdvantage:
    """A formulation that needs no torch, with nothing remembered yet; ``UsageError`` where there is none of that name.

    Returns:
        The formulation.

    Example:
        >>> nothing = [[0.0], [0.0]]
        >>> step = StepRollouts(
        ...     rewards=[np.array([1.0, 0.0])], prompt_ids=("p",), logprobs=nothing, max_logprobs=nothing
        ... )
        >>> [advantage.tolist() for advantage in online_advantage("dr_grpo").advantages(step)]
        [[0.5], [-0.5]]
    """
    if name == "spo":
        return RunningMean()
    if name == "per_step":
        return PerStep()
    if name == "compensation":
        return Compensation(name, limit=2.0)
    if name == "compensation_clipped":
        return Compensation(name, limit=COMPENSATION_LIMIT)
    return OnlineAdvantage(formulation(name).name)


def _by_rollout(advantages: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(np.concatenate(advantages).reshape(-1, 1))

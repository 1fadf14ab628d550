"""Advantages while a run is trained, by name: what a formulation asks of a step beyond its rewards.

Most are arithmetic on the step's rewards (:class:`~gradscope.advantages.online_advantage.OnlineAdvantage`). Here are
those that read tokens, lengths or single reward functions, and the choice among all that need no torch.

Legend: N groups of a step, G rollouts of a group, R rollouts of a step, T tokens of a completion, F reward functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.gram import optimal_advantages
from gradscope.advantages.online_advantage import Array, OnlineAdvantage, StepRollouts
from gradscope.advantages.registry import compute_step_advantages, formulation
from gradscope.advantages.running import RunningMean, ValueTracker
from gradscope.advantages.step import gdpo
from gradscope.advantages.token import COMPENSATION_LIMIT, compensation, own_rewards, return_to_go


class OfTokenRewards(OnlineAdvantage):
    """``per_step`` and ``per_token``: what a token earns, alone or with those after it, against the group.

    Args:
        name: The formulation's name.
        function: From the token rewards of a group, [G][T], to advantages, [G][T].
    """

    def __init__(self, name: str, function: Callable[[Sequence[Sequence[float]]], tuple[Array, ...]]) -> None:
        super().__init__(name)
        self._function = function

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][T].

        Returns:
            One number a token.

        Raises:
            ValueError: The step has no token rewards.
        """
        if step.token_rewards is None:
            raise ValueError(f"{self.name} needs a reward of every token")
        groups = _by_group(step.token_rewards, step)
        return tuple(advantage for group in groups for advantage in self._function(group))


class LengthWeighted(OnlineAdvantage):
    """``opo``: the reward minus the group's mean, a rollout counting once a token."""

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1]."""
        lengths = _by_group([len(tokens) for tokens in step.logprobs], step)
        groups = zip(step.rewards, lengths, strict=True)
        return self.by_rollout([optimal_advantages(rewards, np.asarray(of, dtype=float)) for rewards, of in groups])


class Decoupled(OnlineAdvantage):
    """``gdpo``: each reward function scaled by itself."""

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][1].

        Returns:
            One number a rollout.

        Raises:
            ValueError: The step has no rewards of single functions.
        """
        if not step.function_rewards:
            raise ValueError("gdpo needs the rewards of each function")
        table = np.column_stack([np.asarray(values, dtype=float) for values in step.function_rewards.values()])
        groups = [np.asarray(rows) for rows in _by_group(table, step)]
        return self.by_rollout(gdpo(groups, np.ones(table.shape[1])))


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
    made = _MAKERS.get(name)
    return OnlineAdvantage(formulation(name).name) if made is None else made()


_MAKERS: dict[str, Callable[[], OnlineAdvantage]] = {
    "running_mean": RunningMean,
    "spo": ValueTracker,
    "per_step": lambda: OfTokenRewards("per_step", return_to_go),
    "per_token": lambda: OfTokenRewards("per_token", own_rewards),
    "compensation": lambda: Compensation("compensation", limit=2.0),
    "compensation_clipped": lambda: Compensation("compensation_clipped", limit=COMPENSATION_LIMIT),
    "opo": lambda: LengthWeighted("opo"),
    "gdpo": lambda: Decoupled("gdpo"),
}


def _by_group(values: Sequence[Any] | NDArray[Any], step: StepRollouts) -> list[Any]:
    """What belongs to the rollouts of a step, [R], cut into its groups, [N][G]."""
    ends = np.cumsum([len(group) for group in step.rewards])
    return [values[end - len(group) : end] for group, end in zip(step.rewards, ends, strict=True)]

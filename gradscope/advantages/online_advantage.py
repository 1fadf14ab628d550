"""What a formulation is while a run is trained: from a step's rollouts to advantages, with what it must remember.

Legend: N groups of a step, G rollouts of a group, which may differ from group to group, R rollouts of a step, T tokens
of a completion, H width, F reward functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.registry import compute_step_advantages, formulation

Array = NDArray[np.float64]
Ids = Sequence[int]


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

    function_rewards: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Reward function -> reward of each rollout, [R], of those whose sum is the scalar reward."""
    completion_ids: Sequence[Ids] = ()
    """Token ids of the completions, [R][T]; empty where no formulation asks."""
    rescore: Callable[[Sequence[int], Sequence[Ids]], Sequence[Sequence[float]]] | None = None
    """From groups of this step and a completion of each one's prompt to the log-probabilities of its tokens by the
    weights as they are; None where there is no policy."""

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
        return self.by_rollout(compute_step_advantages(self.name, step.rewards))

    def by_rollout(self, advantages: Sequence[Array]) -> tuple[Array, ...]:
        """Advantages by group, [N][G], in the order of the rollouts, [R][1]."""
        return tuple(np.concatenate(advantages).reshape(-1, 1))

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

"""``token_critic``: the group's advantage plus what a small learned head says of each token.

A_it = A_i + b_it, with A_i the ``grpo`` advantage and b_it = w . h_it + c linear in the policy's last hidden state h at
token t. After each step's advantages are made, one AdamW update lowers -A_i b_it, averaged over the step's tokens. The
head starts at zero, so the first step is that of ``grpo``. The states are detached: neither gradient reaches the other.

The state *at* a token has seen the token. One *before* it could not tell what was chosen, so its b would be a baseline:
it adds noise and moves the expected update nowhere. Nothing bounds b: the loss is linear in it.

Legend: R rollouts of a step, T tokens of a completion, N tokens of a step, H width of the states.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gradscope.advantages.online_advantage import Memory, OnlineAdvantage, StepRollouts

Array = NDArray[np.float64]

_MOMENTS = ("exp_avg", "exp_avg_sq")


class TokenCritic(OnlineAdvantage):
    """The formulation with its head and the head's optimizer.

    Args:
        width: Numbers of a hidden state, H.
        learning_rate: The optimizer's, constant over the run.
    """

    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__("token_critic")
        self._outcome = OnlineAdvantage("grpo")
        self._head = torch.zeros(width + 1, requires_grad=True)  # no random start: that would move the sampler's
        self._optimizer = torch.optim.AdamW([self._head], lr=learning_rate, weight_decay=0.0)
        self._metrics: dict[str, float] = {}

    @property
    def remembers(self) -> bool:
        """It does: the head and the optimizer's state."""
        return True

    @property
    def reads_states(self) -> bool:
        """It does."""
        return True

    @property
    def metrics(self) -> dict[str, float]:
        """Mean |b| over the step's tokens and the auxiliary loss, both before the head's update."""
        return dict(self._metrics)

    def advantages(self, step: StepRollouts) -> tuple[Array, ...]:
        """The advantages of a step, [R][T]; then trains the head on it.

        Returns:
            One number a token.

        Raises:
            ValueError: The step has no hidden states.
        """
        if step.states is None:
            raise ValueError("token_critic needs the hidden state of every token")
        lengths = [len(states) for states in step.states]
        outcome = np.repeat(np.concatenate(self._outcome.advantages(step)), lengths)
        bonus = self._learn(np.concatenate(step.states), outcome)
        return tuple(np.split(outcome + bonus, np.cumsum(lengths)[:-1]))

    def _learn(self, states: NDArray[np.float32], outcome: Array) -> Array:
        """What the head says of each token, [N], before one update of the head on all of them."""
        with torch.enable_grad():
            bonus = torch.from_numpy(states) @ self._head[:-1] + self._head[-1]
            loss = (torch.from_numpy(-outcome).to(bonus) * bonus).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._metrics = {"critic_mean_abs": float(bonus.detach().abs().mean()), "critic_loss": float(loss.detach())}
        return np.asarray(bonus.detach().numpy(), dtype=np.float64)

    @property
    def memory(self) -> Memory:
        """The head, the moments of its optimizer, and how many updates it had."""
        state = self._optimizer.state[self._head]
        arrays = {"head": self._head.detach(), **{name: state[name] for name in _MOMENTS}} if state else {}
        return Memory(
            numbers={"num_updates": float(state["step"]) if state else 0.0},
            arrays={name: array.numpy().copy() for name, array in arrays.items()},
        )

    def recall(self, memory: Memory) -> None:
        """Go on from an earlier head.

        Raises:
            ValueError: It is of a head of another width.
        """
        arrays = {name: torch.from_numpy(memory.arrays[name].copy()) for name in ("head", *_MOMENTS)}
        if any(array.shape != self._head.shape or array.dtype != self._head.dtype for array in arrays.values()):
            raise ValueError("the head that was kept is of another width")
        with torch.no_grad():
            self._head.copy_(arrays["head"])
        state = {name: arrays[name] for name in _MOMENTS} | {"step": torch.tensor(memory.numbers["num_updates"])}
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": {0: state}})

"""What there is to know of an advantage formulation: formula, source, what it needs, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

Scope = Literal["group", "step", "length", "functions", "run", "token", "gram"]

_BEYOND_REWARDS = {
    "length": "it weighs rewards by the lengths of completions, which rewards alone do not tell",
    "functions": "it scales the rewards of each function by themselves, and their sum does not tell them",
    "run": "it depends on earlier steps of the run, which the rewards of a group do not tell",
    "token": "it has one advantage per token, made of what the trainer knows of each token",
    "gram": "it weighs rewards by the norms of score vectors, which `gradscope rank` has and rewards do not tell",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """One way to turn the rewards of a group into advantages."""

    name: str
    """The name in ``--advantage``, JSON and tables."""
    formula: str
    """How it is computed, in one line of plain text."""
    source: str
    """The paper or program that the formula is from."""
    needs_binary: bool
    """Whether it is defined for rewards of 0 and 1 only."""
    min_group_size: int
    """Fewest rollouts of a group that it is defined for."""
    zero_sum: bool
    """Whether the advantages of every group sum to zero."""
    scope: Scope = "group"
    """What it needs: the rewards of a group, of all groups of a step, also the lengths of completions, the rewards of
    each function, a memory of the run, numbers of each token, or a Gram matrix of score vectors."""
    function: Callable[[Any], Any] | None = None
    """From rewards [..., G] to advantages [..., G], with ``step`` from [N][G] to [N][G]; None where rewards alone do
    not decide."""
    digest: str | None = None
    """SHA-256 of the file that a user's own is from; None for one of the package."""

    def why_not(self, rewards: ArrayLike) -> str | None:
        """Why rewards, [..., G] or all groups of a step, [N, G], have no such advantage; None where they have one."""
        values = np.asarray(rewards, dtype=np.float64)
        if self.scope in _BEYOND_REWARDS:
            return _BEYOND_REWARDS[self.scope]
        if self.scope == "step" and values.ndim != 2:
            return "it is relative to all groups of a step, and this is one group"
        if values.shape[-1] < self.min_group_size:
            return f"{self.name} needs groups of at least {self.min_group_size}, this one has {values.shape[-1]}"
        other = values[(values != 0.0) & (values != 1.0)]
        if self.needs_binary and len(other):
            return f"it is defined for rewards of 0 and 1, and there is a reward of {other[0]:g}"
        return None

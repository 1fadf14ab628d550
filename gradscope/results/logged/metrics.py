"""A number that a trainer logged by step, of a log that holds metrics and no rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradscope.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCourse:
    """One number at the steps that have it, as it was logged."""

    name: str
    """Its common name: ``frac_reward_zero_std``, ``reward``, ``grad_norm``, ..."""
    title: str
    """What it is, in a few words."""
    style: Literal["share", "norm", "count"]
    """How it reads."""
    mean: Estimate
    """Mean over these steps, without an interval; undefined where one of them is no finite number."""
    largest_step: int
    """The step of its largest finite number; of its first number where none is finite."""
    smallest_step: int
    """The same of its smallest."""
    steps: tuple[int, ...]
    """The steps, ascending."""
    values: tuple[float, ...]
    """The number at each of them; NaN and infinity as they were logged."""

    def at(self, step: int) -> float:
        """The number at one of its steps."""
        return self.values[self.steps.index(step)]

"""What is gathered of a log a step at a time, so that its rollouts are read once, whoever looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from gradscope.metrics.uncertainty.resampling import Resampling
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

Result_co = TypeVar("Result_co", covariant=True)


class Gathered(Protocol[Result_co]):
    """What a part of :class:`LoggedPolicy` needs of the steps so far."""

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Take in the rollouts of the next step."""

    def result(self, run: Run, resampling: Resampling) -> Result_co:
        """The part, when all steps of the run were taken in."""


def gathered(part: Gathered[Result_co], run: Run, resampling: Resampling) -> Result_co:
    """A part of a run, for which alone all its steps are read."""
    for step, groups in run.by_step():
        part.add(step, groups)
    return part.result(run, resampling)

from __future__ import annotations

from collections.abc import Sequence

from gradscope.diagnostics.logged.gathered import gathered
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of


class Sizes:
    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def add(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        self.found.append((step, len(groups)))

    def result(self, run: Run, resampling: Resampling) -> tuple[str, list[tuple[int, int]]]:
        return run.source.path, self.found


def test_a_part_sees_each_step_once_and_then_the_run() -> None:
    run = run_of(group_of([1], step=2, prompt="a"), group_of([1], step=1), group_of([0], step=2, prompt="b"))
    assert gathered(Sizes(), run, RESAMPLING) == (run.source.path, [(1, 1), (2, 2)])

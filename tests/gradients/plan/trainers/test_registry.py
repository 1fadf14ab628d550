from __future__ import annotations

from gradscope.gradients.plan.trainers.registry import TRAINERS, objective_of
from gradscope.rollouts.run import TrainerSettings


def test_the_trainer_that_the_arguments_name_decides_and_else_it_is_trl() -> None:
    assert objective_of(TrainerSettings()).declared is None
    for name in TRAINERS:
        objective = objective_of(TrainerSettings(values={"trainer": name}))
        assert objective.loss is objective.declared


def test_an_objective_is_written_alike_in_every_process() -> None:
    """What is kept of interrupted work is found again by it."""
    for name in TRAINERS:
        assert "0x" not in repr(objective_of(TrainerSettings(values={"trainer": name})))

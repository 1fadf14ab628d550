"""Whose loss a run's arguments describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.trainers import nemo_rl, prime_rl, verl
from gradscope.rollouts.run import TrainerSettings

TRAINERS: Mapping[str, Callable[[TrainerSettings], Objective]] = {
    "verl": verl.objective,
    "prime-rl": prime_rl.objective,
    "nemo-rl": nemo_rl.objective,
}
"""Trainers other than TRL -> the loss of their arguments."""


def objective_of(settings: TrainerSettings) -> Objective:
    """The loss of a run: of the trainer that its arguments name, else TRL's."""
    return TRAINERS.get(str(settings.get("trainer")), Objective.from_settings)(settings)

"""Whose loss a run's arguments describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradscope.errors import InputError
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.trainers.nemo_rl import nemo_rl_objective
from gradscope.gradients.plan.trainers.prime_rl import prime_rl_objective
from gradscope.gradients.plan.trainers.verl import verl_objective
from gradscope.rollouts.run import TrainerSettings

TRAINERS: Mapping[str, Callable[[TrainerSettings], Objective]] = {
    "verl": verl_objective,
    "prime-rl": prime_rl_objective,
    "nemo-rl": nemo_rl_objective,
}
"""Trainers other than TRL -> the loss of their arguments."""


def objective_of(settings: TrainerSettings) -> Objective:
    """The loss of a run: of the trainer that its arguments name, else TRL's.

    Raises:
        InputError: An argument is of another type, or a number that none can be.
    """
    try:
        return TRAINERS.get(str(settings.get("trainer")), Objective.from_settings)(settings)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(
            f"{settings.origin} holds arguments that no trainer has: {error}.",
            hint="Give the trainer's arguments as it had them: --run-config FILE",
        ) from error

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import ForwardPasses, plan_rows
from gradscope.gradients.plan.untested import untested_arguments
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.models import sequence_of
from tests.gradients.plan.test_rows import LOGPROBS, ROLLOUT

GRPO = {"loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, "delta": None, "sapo_temperature_pos": 1.0}
ON_POLICY = ["epsilon", "loss_type = sapo"]
ONE_BATCH = {**GRPO, "per_device_train_batch_size": 2, "generation_batch_size": 2}
REUSED = {**GRPO, "num_iterations": 2}


def untested(
    values: dict[str, Any], log_ratio: float = 0.0, advantage: float | None = 1.0, behind: float = 0.0
) -> list[str]:
    """Of a step of two completions, of one and three tokens."""
    settings = TrainerSettings(values=values, origin="args.json")
    sequences = [sequence_of((1,), (2, 3, 4)), sequence_of((1,), (2,))]
    at = [LOGPROBS, LOGPROBS[:1]]
    rollouts = [replace(ROLLOUT, sample=sample, advantage=advantage) for sample in range(2)]
    passes = ForwardPasses(old=[at[0] - log_ratio, at[1]], reference=[row + behind for row in at])
    plan = plan_rows(sequences, rollouts, Objective.from_settings(settings), passes)
    return list(untested_arguments(plan, settings, [np.asarray(row) for row in at]))


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (GRPO, {}, ON_POLICY),
        (GRPO, {"advantage": None}, []),
        ({**GRPO, "loss_type": "dapo"}, {}, ["loss_type = vespo", "epsilon"]),
        ({**ONE_BATCH, "loss_type": "dapo"}, {}, ["loss_type = bnpo", "loss_type = vespo", "epsilon"]),
        (REUSED, {"log_ratio": 0.1}, ["epsilon"]),
        (REUSED, {"log_ratio": 0.3}, []),  # clipped
        ({**REUSED, "delta": 3.0}, {"log_ratio": 0.1}, ["epsilon", "delta"]),
        ({**GRPO, "beta": 0.1}, {}, ["loss_type = sapo", "beta", "epsilon"]),
        ({**GRPO, "beta": 0.1}, {"behind": 0.5}, ON_POLICY),
    ],
)
def test_arguments_that_leave_every_weight_as_it_is(
    values: dict[str, Any], options: dict[str, Any], expected: list[str]
) -> None:
    assert sorted(untested(values, **options)) == sorted(expected)

from typing import Any

import pytest
from msgspec.structs import replace

from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.rows import ForwardPasses, plan_rows
from gradscope.gradients.plan.untested import untested_arguments
from gradscope.rollouts.run import TrainerSettings
from tests.gradients.models import sequence_of
from tests.gradients.plan.test_rows import LOGPROBS, ROLLOUT

ON_POLICY = ["epsilon", "loss_type = sapo"]
ONE_BATCH = {"loss_type": "dapo", "per_device_train_batch_size": 2, "generation_batch_size": 2}
REUSED = {"num_iterations": 2, "delta": 3.0}


@pytest.mark.parametrize(
    ("values", "log_ratio", "behind", "expected"),
    [
        ({"sapo_temperature_pos": 1.0}, 0.0, 0.0, ON_POLICY),
        ({"loss_type": "dapo"}, 0.0, 0.0, ["epsilon", "loss_type = vespo"]),
        (ONE_BATCH, 0.0, 0.0, ["epsilon", "loss_type = bnpo", "loss_type = vespo"]),
        (REUSED, 0.1, 0.0, ["delta", "epsilon"]),
        (REUSED, 0.3, 0.0, ["delta"]),  # clipped
        ({"beta": 0.1}, 0.0, 0.0, ["beta", *ON_POLICY]),
        ({**ONE_BATCH, "loss_type": "grpo", "beta": 0.1, "entropy_coef": 0.1}, 0.0, 0.5, ON_POLICY),
    ],
)
def test_arguments_that_leave_every_weight_as_it_is(
    values: dict[str, Any], log_ratio: float, behind: float, expected: list[str]
) -> None:
    """Of a step of two completions, of one and three tokens."""
    settings = TrainerSettings(values={"loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, **values}, origin="args.json")
    logprobs = [LOGPROBS, LOGPROBS[:1]]
    passes = ForwardPasses(old=[logprobs[0] - log_ratio, logprobs[1]], reference=[row + behind for row in logprobs])
    rollouts = [replace(ROLLOUT, sample=sample, advantage=1.0) for sample in range(2)]
    sequences = [sequence_of((1,), (2, 3, 4)), sequence_of((1,), (2,))]
    plan = plan_rows(sequences, rollouts, Objective.from_settings(settings), passes)
    assert sorted(untested_arguments(plan, settings, [row.numpy() for row in logprobs], 1e-6)) == sorted(expected)

from __future__ import annotations

from typing import Any

import pytest

from gradscope.gradients.plan.trainers.prime_rl import _sampling_temperature, prime_rl_objective
from gradscope.gradients.plan.trainers.terms import within_both_bounds, within_one_bound
from gradscope.rollouts.run import TrainerSettings


def settings(**loss: Any) -> TrainerSettings:
    return TrainerSettings(values={f"trainer.loss.{name}": value for name, value in loss.items()}, origin="a file")


def test_the_default_is_a_ratio_to_the_sampler_with_a_squared_log_ratio() -> None:
    objective = prime_rl_objective(settings(type="default", dppo_mask_high=0.3, kl_tau=0.01, adv_tau=0.5))
    assert objective.loss.term is within_one_bound
    assert (objective.epsilon_low, objective.epsilon_high, objective.advantage_scale) == (0.2, 0.3, 0.5)
    assert (objective.beta, objective.kl_type, objective.kl_to_sampler, objective.has_reference) == (
        0.01,
        "square",
        True,
        False,
    )
    assert objective.token_weights([[True], [True, False, True]]) == pytest.approx([1 / 3, 1 / 3])


def test_both_bounds_under_their_older_and_newer_names() -> None:
    older, newer = settings(ipo_mask_low=0.05, ipo_mask_high=0.2), settings(type="ipo", ipo_threshold=0.07)
    for given, bounds in ((older, (0.05, 0.2)), (newer, (0.07, 0.07))):
        objective = prime_rl_objective(given)
        assert objective.loss.term is within_both_bounds
        assert (objective.epsilon_low, objective.epsilon_high) == bounds


def test_the_temperature_is_that_of_training() -> None:
    values = {"orchestrator.eval.sampling.temperature": 0.1, "orchestrator.train.sampling.temperature": 0.7}
    assert _sampling_temperature(TrainerSettings(values=values)) == 0.7
    assert _sampling_temperature(TrainerSettings()) == 1.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"trainer.loss.type": "custom"}, "'custom'"),
        ({"trainer.loss.teacher_tau": 0.5, "trainer.teacher.model": "x"}, "teacher"),
        ({"trainer.loss.ratio_type": "token"}, "trainer.loss has ratio_type"),
        ({"orchestrator.sampling.temp_scheduler.type": "linear"}, "schedule"),
        ({"a.sampling.temperature": 0.5, "b.sampling.temperature": 1.0}, "different temperatures"),
    ],
)
def test_what_cannot_be_formed(values: dict[str, Any], said: str) -> None:
    found = prime_rl_objective(TrainerSettings(values=values)).cannot
    assert found is not None
    assert found.cause == "loss_unknown"
    assert said in str(found)

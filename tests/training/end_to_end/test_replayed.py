"""The contract between training and diagnosis: the engine reproduces from a run's folder what TRL logged in it."""

from pathlib import Path
from typing import Any

import pytest

from gradscope import replay_run
from tests.trained import MakeRun

pytestmark = pytest.mark.slow  # whole runs of TRL, replayed

SETTINGS: tuple[dict[str, Any], ...] = (
    {"advantage": "grpo_negative:c=0.5", "temperature": 0.7, "loss_type": "grpo"},
    {"advantage": "batch_mean", "gradient_accumulation_steps": 4},
    {"advantage": "opo", "lora_rank": 2, "task": "starved", "loss_type": "dr_grpo"},
    {"advantage": "gdpo", "beta": 0.1, "task": "steps", "loss_type": "bnpo"},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()))
def test_every_logged_number_is_reproduced(short_run: MakeRun, settings: dict[str, Any]) -> None:
    report = replay_run(short_run(**settings))
    assert report.verdict == "match"
    steps = {step.step: step for step in report.steps}
    assert [steps[number].verdict for number in (1, 3)] == ["match", "match"]
    assert all(steps[number].relative_error["grad_norm"] < 1e-5 for number in (1, 3))
    assert steps[2].verdict == "cannot"  # the weights after one update were not saved
    matching = {quantity.name for quantity in steps[2].quantities if quantity.verdict == "match"}
    assert matching == {"reward", "advantage", "frac_reward_zero_std"}


BEYOND_REWARDS: tuple[dict[str, Any], ...] = (
    *({"advantage": name} for name in ("running_mean", "per_token")),
    {"advantage": "token_critic", "lora_rank": 2, "gradient_accumulation_steps": 4, "checkpoint_every": 1},
)


@pytest.mark.parametrize("settings", BEYOND_REWARDS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_the_norm_is_reproduced_without_rewards_of_advantages(short_run: MakeRun, settings: dict[str, Any]) -> None:
    report = replay_run(short_run(**settings), steps=(1, 3))
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    verdicts = {quantity.name: quantity.verdict for step in report.steps for quantity in step.quantities}
    assert verdicts["advantage"] == "cannot"
    assert {verdict for name, verdict in verdicts.items() if name != "advantage"} == {"match"}


def test_a_mixture_of_experts_is_reproduced(short_run: MakeRun, experts_model: Path) -> None:
    report = replay_run(short_run(model=str(experts_model), advantage="sign", beta=0.1), steps=(1, 3))
    assert all(step.logged["grad_norm"] > 0.01 for step in report.steps)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    assert report.verdict == "match"

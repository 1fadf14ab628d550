import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from gradscope.training.config import TrainConfig
from gradscope.training.libraries import grpo_config, lora_config, quiet_libraries, trainer_arguments
from gradscope.training.train import train
from tests.trained import HELD_OUT
from tests.training.conftest import short_config


def arguments(num_processes: int = 1, **settings: Any) -> dict[str, Any]:
    return trainer_arguments(TrainConfig.from_json(settings), 27, num_processes)


@pytest.mark.parametrize(
    ("settings", "num_processes", "batch_size"),
    [({}, 1, 128), ({"gradient_accumulation_steps": 4}, 1, 32), ({"gradient_accumulation_steps": 4}, 2, 16)],
)
def test_one_generation_serves_one_update(settings: dict[str, Any], num_processes: int, batch_size: int) -> None:
    made = arguments(num_processes, **settings)
    assert made["per_device_train_batch_size"] == batch_size
    assert batch_size * made["gradient_accumulation_steps"] * num_processes == made["generation_batch_size"] == 128
    assert made["steps_per_generation"] == made["gradient_accumulation_steps"]


def test_the_configuration_means_the_same_in_trls_words() -> None:
    assert json.loads(json.dumps(arguments())) == arguments()
    assert arguments()["reward_weights"] is None
    assert arguments(reward="answer_probability")["reward_weights"] == [0.0, 1.0]  # the outcome counts nothing
    made = arguments(learning_rate=1e-5, beta=0.1, loss_type="grpo", seed=3, steps=7, dtype="bfloat16", temperature=0.7)
    expected = {"learning_rate": 1e-5, "beta": 0.1, "loss_type": "grpo", "seed": 3, "data_seed": 3, "max_steps": 7}
    assert made.items() >= {**expected, "bf16": True, "temperature": 0.7, "max_completion_length": 27}.items()


@pytest.mark.slow
def test_trl_takes_them_and_changes_none(tmp_path: Path) -> None:
    made = arguments()
    with quiet_libraries():
        config = grpo_config(made, output_dir=str(tmp_path), on_cpu=True)
    differing = {name for name, value in made.items() if getattr(config, name) != value}
    assert differing <= {"optim", "lr_scheduler_type", "logging_strategy", "save_strategy", "eval_strategy"}  # enums
    assert (config.output_dir, config.use_cpu, config.report_to) == (str(tmp_path), True, [])
    assert getattr(config, "router_aux_loss_coef", 0.0) == 0.0  # where TRL knows it, its default is the model's own


def test_an_adapter_has_twice_its_rank_as_scale_by_default() -> None:
    assert lora_config(TrainConfig()) is None
    assert lora_config(TrainConfig(lora_rank=8)).lora_alpha == 16
    adapter = lora_config(TrainConfig(lora_rank=8, lora_alpha=4.0))
    assert (adapter.r, adapter.lora_alpha, adapter.lora_dropout, adapter.target_modules) == (8, 4.0, 0.0, "all-linear")


@pytest.mark.slow
def test_nothing_is_printed_and_the_process_stays_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import random

    import torch
    from transformers.utils import logging
    from trl import GRPOTrainer  # noqa: F401  # some of what it imports draws, once a process

    def state() -> list[Any]:
        numbers = [random.getstate(), torch.get_rng_state().tolist()]
        return [torch.get_num_threads(), logging.get_verbosity(), list(warnings.filters), *numbers]

    before = state()
    seen: list[tuple[int, int, str]] = []
    train(short_config(tmp_path / "run", steps=2, **HELD_OUT), progress=lambda *report: seen.append(report))
    assert state() == before
    steps = [(1, 2, "steps"), (2, 2, "steps")]
    assert seen == [(4, 4, "held-out prompts before"), *steps, (4, 4, "held-out prompts after")]
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")

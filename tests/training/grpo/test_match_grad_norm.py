"""Norm matching: every update from a gradient of the asked norm, whatever the formulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradscope.rollouts.run_folder import checkpoint_path, read_metrics
from gradscope.training.grpo.match_grad_norm import NormMatch
from gradscope.training.setup.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import SHORT


@pytest.fixture
def norms() -> Iterator[list[float]]:
    """The norm of the gradient that each step of an optimizer starts from."""
    seen: list[float] = []

    def see(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])))

    handle = register_optimizer_step_pre_hook(see)
    yield seen
    handle.remove()


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["dr_grpo", "sign"])
def test_every_update_has_the_norm_and_the_log_keeps_the_gradients_own(
    short_run: Callable[..., Path], tmp_path: Path, norms: list[float], advantage: str
) -> None:
    settings = SHORT | {"advantage": advantage, "match_grad_norm": 2.5, "gradient_accumulation_steps": 2}
    run = train(TrainConfig.from_json(settings | {"output": str(tmp_path / "run")}))
    assert norms == pytest.approx([2.5] * 3, rel=1e-5)
    plain = short_run(advantage=advantage, gradient_accumulation_steps=2)
    assert read_metrics(run)[1]["grad_norm"] == read_metrics(plain)[1]["grad_norm"]
    first, second = (checkpoint_path(folder, 3) / "model.safetensors" for folder in (run, plain))
    assert first.read_bytes() != second.read_bytes()


def test_a_gradient_of_zero_stays() -> None:
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    NormMatch(1.0).on_pre_optimizer_step(None, None, None, model=model)
    assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)

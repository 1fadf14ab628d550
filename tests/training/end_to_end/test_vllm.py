"""Runs that vLLM samples: an engine of the tests in its place, for vLLM itself needs a GPU."""

import math
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope import replay_run
from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.rollouts.run_folder import read_manifest
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.libraries import grpo_config, quiet_libraries, trainer_arguments
from gradscope.training.run_checks import VLLM_NOTE
from gradscope.training.train import train
from tests.training.conftest import short_config

pytestmark = pytest.mark.slow  # TRL is loaded


class Engine:
    """Samples token by token, and says log-probabilities that are a little off the trainer's."""

    made: Any = None

    def __init__(self, *, model: Any, processing_class: Any, temperature: float, **arguments: Any) -> None:
        Engine.made, self.num_synced = self, 0
        self.model, self.tokenizer, self.temperature, self.arguments = model, processing_class, temperature, arguments

    def sync_weights(self) -> None:
        self.num_synced += 1

    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any) -> tuple[Any, ...]:
        sampled = [self._complete(list(prompt)) for prompt in prompts]
        return prompts, [ids for ids, _ in sampled], [[[number] for number in numbers] for _, numbers in sampled], None

    def _complete(self, ids: list[int]) -> tuple[list[int], list[float]]:
        import torch

        completion: list[int] = []
        numbers: list[float] = []
        while len(completion) < self.arguments["max_completion_length"]:
            with torch.no_grad():
                scores = self.model(input_ids=torch.tensor([ids + completion])).logits[0, -1] / self.temperature
            chances = torch.softmax(scores, -1)
            completion.append(int(torch.multinomial(chances, 1)))
            numbers.append(float(chances[completion[-1]].log()) + 0.3 * math.sin(7 * len(completion) + completion[-1]))
            if completion[-1] == self.tokenizer.eos_token_id:
                break
        return completion, numbers


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM that looks installed, and whose engine is ours."""
    module = types.ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    with quiet_libraries():
        import trl.trainer.grpo_trainer
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", Engine)


def short(output: Path, **settings: Any) -> TrainConfig:
    return short_config(output, checkpoint_every=1, **settings)


@pytest.mark.usefixtures("installed")
def test_its_samples_and_its_correction_are_recorded_and_replayed(tmp_path: Path) -> None:
    vllm = {"importance_sampling_mode": "token_truncate", "gpu_memory_utilization": 0.25, "server_port": 8123}
    run = train(short(tmp_path / "run", vllm=vllm, sampling="dynamic", steps=2))
    assert Engine.made.arguments["gpu_memory_utilization"] == 0.25
    assert Engine.made.arguments["server_port"] == 8123
    assert Engine.made.num_synced == 2
    for group in read_steps(run):
        for rollout in group.rollouts:
            noise = [0.3 * math.sin(7 * i + token) for i, token in enumerate(rollout.completion_ids or (), 1)]
            assert rollout.trainer_logprobs is not None
            np.testing.assert_allclose(np.subtract(rollout.logprobs, rollout.trainer_logprobs), noise, atol=1e-4)
    report = replay_run(run)
    assert report.verdict == "match"
    assert any(step.logged["grad_norm"] > 0.001 for step in report.steps)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
    manifest = read_manifest(run)
    assert manifest.config["vllm"] == vllm
    assert VLLM_NOTE in manifest.notes


def test_its_arguments_reach_trl(tmp_path: Path) -> None:
    config = TrainConfig(vllm={"mode": "server", "server_host": "host", "importance_sampling_correction": False})
    with quiet_libraries():
        made = grpo_config(trainer_arguments(config, 27), output_dir=str(tmp_path), on_cpu=True)
    assert (made.use_vllm, made.vllm_mode, made.vllm_server_host) == (True, "server", "host")
    assert (made.vllm_importance_sampling_correction, made.vllm_importance_sampling_mode) == (False, "sequence_mask")


def test_where_it_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="--vllm samples by vLLM, which is not installed") as caught:
        train(short(tmp_path / "run", vllm={}))
    assert str(caught.value.hint).startswith("pip install 'trl[vllm]'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("vllm", "hint"), [({"server_prot": 1}, "Did you mean 'server_port'"), ({"x": 1}, "Known names: ")]
)
def test_an_argument_that_trl_does_not_have(tmp_path: Path, vllm: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError, match=f"TRL's GRPOConfig has no argument vllm_{next(iter(vllm))}") as caught:
        train(short(tmp_path / "run", vllm=vllm))
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.usefixtures("installed")
def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: Engine, **_: Any) -> None:
        raise ConnectionError("The vLLM server can't be reached at http://there:8000 after 240 seconds.")

    monkeypatch.setattr(Engine, "__init__", absent)
    with pytest.raises(InputError, match=r"The vLLM server can't be reached at http://there:8000") as caught:
        train(short(tmp_path / "run", vllm={"mode": "server"}))
    assert "trl vllm-serve" in str(caught.value.hint)

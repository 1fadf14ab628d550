"""What a run refuses before it touches anything, and what it replaces only when told to."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.rollouts.run_folder import read_metrics, step_path
from gradscope.training.setup.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import SHORT


def short(output: Path, **settings: Any) -> TrainConfig:
    return TrainConfig.from_json(SHORT | settings | {"output": str(output)})


def test_force_replaces_a_run(tmp_path: Path) -> None:
    run = train(short(tmp_path / "run", steps=2, heldout_prompts=0))
    train(short(tmp_path / "run", steps=1, heldout_prompts=0), force=True)
    assert list(read_metrics(run)) == [1]
    assert not step_path(run, 2).exists()


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        train(short(tmp_path / "run", model=str(tmp_path / "none")))
    with pytest.raises(UsageError, match="no advantage formulation 'grop'"):
        train(short(tmp_path / "run", advantage="grop"))
    with pytest.raises(InputError, match="does not fit the model's 64 positions"):
        train(short(tmp_path / "run", max_completion_length=60))
    with pytest.raises(UsageError, match="sign is defined for rewards of 0 and 1, and the task steps rewards shares"):
        train(short(tmp_path / "run", task="steps", advantage="sign"))
    assert not (tmp_path / "run").exists()


def test_resume_and_force_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume goes on with a run and --force replaces it"):
        train(short(tmp_path / "run"), resume=True, force=True)


def test_missing_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.training.train.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="Training needs TRL") as caught:
        train(short(tmp_path / "run"))
    assert caught.value.hint == "pip install 'gradscope[train]'"


def test_trl_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = types.ModuleType("trl")
    broken.__spec__ = ModuleSpec("trl", None)
    monkeypatch.setitem(sys.modules, "trl", broken)
    with pytest.raises(MissingDependencyError, match="TRL is installed but does not load: cannot import name"):
        train(short(tmp_path / "run"))


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="There is no CUDA device"):
        train(short(tmp_path / "run", device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="2 GPUs are visible, and one process uses one") as caught:
        train(short(tmp_path / "run", device="auto"))
    assert "accelerate launch --multi_gpu -m gradscope train" in str(caught.value.hint)

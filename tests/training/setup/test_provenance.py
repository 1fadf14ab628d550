from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope.rollouts.run_folder import (
    checkpoint_path,
    heldout_path,
    read_manifest,
    step_path,
)
from gradscope.training.setup.config import read_config
from gradscope.training.train import train

MakeRun = Callable[..., Path]


@pytest.mark.slow
def test_manifest_repeats_the_run(short_run: MakeRun, tmp_path: Path) -> None:
    run = short_run()
    manifest = read_manifest(run)
    arguments = manifest.trainer_arguments
    assert [
        arguments[name] for name in ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps")
    ] == [4, 16, 1]
    assert [arguments[name] for name in ("loss_type", "beta", "temperature", "epsilon", "num_iterations")] == [
        "dapo",
        0.0,
        1.0,
        0.2,
        1,
    ]
    assert arguments["max_completion_length"] == 27
    assert manifest.seed == 0
    assert manifest.versions["trl"]
    assert "recomputed" in manifest.notes[0]
    again = train(dataclasses.replace(read_config(run), output=str(tmp_path / "again")))
    for step in (1, 2, 3):
        assert step_path(run, step).read_bytes() == step_path(again, step).read_bytes()
    weights = [checkpoint_path(folder, 3) / "model.safetensors" for folder in (run, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert heldout_path(run, "after").read_bytes() == heldout_path(again, "after").read_bytes()

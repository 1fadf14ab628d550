"""Runs that Ctrl-C ends at a chosen point, and what makes two runs the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.run_folder import checkpoint_path, heldout_path, metrics_path, step_path
from gradscope.rollouts.store import step_files
from gradscope.training.checkpoints import complete_checkpoints
from gradscope.training.config import TrainConfig
from gradscope.training.train import train
from tests.training.conftest import HELD_OUT, short_config

LONG = {"steps": 7, "checkpoint_every": 2, **HELD_OUT}


def config_for(output: Path, **settings: Any) -> TrainConfig:
    return short_config(output, **LONG | settings)


def interrupted(output: Path, at: tuple[int, str], **settings: Any) -> TrainConfig:
    """A run that Ctrl-C ends when so many of something are done."""

    def interrupt(done: int, total: int, label: str) -> None:
        if (done, label) == at:
            raise KeyboardInterrupt

    config = config_for(output, **settings)
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=interrupt)
    return config


def assert_same_run(run: Path, other: Path, weights: str = "model.safetensors") -> None:
    assert [path.name for path in step_files(run)] == [path.name for path in step_files(other)]
    for step in range(1, 8):
        assert step_path(run, step).read_bytes() == step_path(other, step).read_bytes(), f"step {step}"
    for number in complete_checkpoints(other):
        ours, theirs = (checkpoint_path(folder, number) / weights for folder in (run, other))
        assert ours.read_bytes() == theirs.read_bytes(), f"checkpoint {number}"
    for when in ("before", "after"):
        assert heldout_path(run, when).read_bytes() == heldout_path(other, when).read_bytes()  # type: ignore[arg-type]
    untimed = [
        [{name: value for name, value in json.loads(line).items() if name != "step_time"} for line in text.splitlines()]
        for text in (metrics_path(run).read_text(), metrics_path(other).read_text())
    ]
    assert untimed[0] == untimed[1]

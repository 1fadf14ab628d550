"""Runs that Ctrl-C ends at a chosen point, and what makes two runs the same."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.run_folder import metrics_path
from gradscope.rollouts.store import step_files
from gradscope.training.config import TrainConfig
from gradscope.training.train import train
from tests.trained import HELD_OUT
from tests.training.conftest import short_config

LONG = {"steps": 5, "checkpoint_every": 2, **HELD_OUT}


def config_for(output: Path, **settings: Any) -> TrainConfig:
    return short_config(output, **LONG | settings)


def interrupted(output: Path, stop: tuple[int, str], **settings: Any) -> TrainConfig:
    """A run that Ctrl-C ends when so many of something are done."""

    def interrupt(done: int, total: int, label: str) -> None:
        if (done, label) == stop:
            raise KeyboardInterrupt

    config = config_for(output, **settings)
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=interrupt)
    return config


def assert_same_run(run: Path, other: Path, weights: str = "model.safetensors") -> None:
    assert digests(run, weights) == digests(other, weights)
    untimed = [
        [{name: value for name, value in json.loads(line).items() if name != "step_time"} for line in text.splitlines()]
        for text in (metrics_path(run).read_text(), metrics_path(other).read_text())
    ]
    assert untimed[0] == untimed[1]


def digests(run: Path, weights: str) -> dict[str, str]:
    """Of the steps, the held-out samples and the weights of a run."""
    files = [*step_files(run), *run.glob("heldout/*.jsonl"), *run.glob(f"checkpoints/*/{weights}")]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

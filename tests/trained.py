"""What is made once for all workers, and the short runs of training that many tests look at."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

SHORT: dict[str, Any] = {
    "steps": 3,
    "num_prompts": 4,
    "group_size": 4,
    "checkpoint_every": 2,
    "heldout_prompts": 0,
    "train_prompts": 8,
    "max_completion_length": 16,
    "device": "cpu",
}
HELD_OUT = {"heldout_prompts": 4, "heldout_samples": 4}  # a quarter of the time of a short run
MakeRun = Callable[..., Path]


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that only the first worker who asks for it makes; the others wait for it, and all read it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # where the folders of all workers lie
    folder, finished = root / "shared" / name, root / "shared" / f"{name}.finished"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            finished.touch()
    return folder


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates of the embedded model, made by the command itself."""
    from gradscope.__main__ import main

    sizes = ("--steps", "2", "--num-prompts", "4", "--group-size", "4", "--max-completion-length", "16")
    heldout = ("--heldout-prompts", "4", "--heldout-samples", "4")
    more = ("--checkpoint-every", "1", "--learning-rate", "0.001")

    def make(folder: Path) -> None:
        assert main(["train", "--output", str(folder), "--quiet", *sizes, *heldout, *more]) == 0

    return made_once(tmp_path_factory, "tiny", make)


@pytest.fixture(scope="session")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """A run of three steps, made once for each choice of settings; nobody may write into it."""
    from msgspec.structs import asdict, replace

    from gradscope.training.config import TrainConfig
    from gradscope.training.train import train

    def make(**settings: Any) -> Path:
        config = TrainConfig.from_json(SHORT | settings)
        key = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]
        return made_once(tmp_path_factory, f"{key}/run", lambda folder: train(replace(config, output=str(folder))))

    return make

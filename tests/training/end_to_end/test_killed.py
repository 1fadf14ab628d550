"""Runs killed outright, between steps and inside a checkpoint write, and gone on with: they end where others do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradscope.rollouts.run_folder import checkpoint_path, metrics_path
from gradscope.training.grid import cell_command
from gradscope.training.setup.checkpoints import MARKER, complete_checkpoints
from gradscope.training.setup.config import TrainConfig
from gradscope.training.train import train
from tests.forked import ForkedPython
from tests.training.interrupted import LONG, assert_same_run, config_for

pytestmark = pytest.mark.slow  # whole runs of TRL

PATIENCE = 120.0
FORMULATIONS = ("spo", "token_critic")  # each keeps more than weights


@contextmanager
def running(config: TrainConfig, *, resume: bool) -> Iterator[ForkedPython]:
    """A process that trains; killed at the end of the block."""
    process = ForkedPython(["-m", "gradscope", *cell_command(config, resume=resume), "--quiet"])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it had ended by itself"


def wait_for(reached: Callable[[], bool], process: ForkedPython) -> None:
    end = time.monotonic() + PATIENCE
    while not reached() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
    assert reached()


def kill_between_steps(config: TrainConfig) -> None:
    """Right after the third step is written, which no checkpoint holds."""
    run = Path(config.output)
    with running(config, resume=False) as process:
        wait_for(lambda: metrics_path(run).is_file() and metrics_path(run).read_bytes().count(b"\n") >= 3, process)


def kill_inside_a_checkpoint(config: TrainConfig) -> None:
    """With the weights of checkpoint-6 written: the optimizer's state goes into a pipe that nobody reads."""
    run = Path(config.output)
    torn, before = checkpoint_path(run, 6), metrics_path(run).stat().st_ino
    with running(config, resume=True) as process:
        wait_for(lambda: metrics_path(run).stat().st_ino != before, process)  # what came after checkpoint-2 is gone
        torn.mkdir()
        os.mkfifo(torn / "optimizer.pt")
        wait_for(lambda: (torn / "model.safetensors").is_file(), process)
    assert not (torn / MARKER).exists()
    assert complete_checkpoints(run) == (0, 2, 4)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainConfig]:
    """A run of each formulation, killed twice; side by side."""
    folder = tmp_path_factory.mktemp("killed")
    configs = {name: config_for(folder / name, advantage=name) for name in FORMULATIONS}

    def kill(config: TrainConfig) -> None:
        kill_between_steps(config)
        kill_inside_a_checkpoint(config)

    with ThreadPoolExecutor(len(configs)) as pool:
        list(pool.map(kill, configs.values()))
    return configs


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULATIONS)
def test_a_run_killed_twice_equals_the_uninterrupted(
    short_run: Callable[..., Path], killed: dict[str, TrainConfig], name: str
) -> None:
    assert_same_run(train(killed[name], resume=True), short_run(**LONG, advantage=name))

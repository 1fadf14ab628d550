"""Runs killed outright, between steps and inside a checkpoint write, and gone on with: they end where others do."""

import json
import signal
from pathlib import Path

import pytest

from gradscope.rollouts.run_folder import checkpoint_path, metrics_path
from gradscope.training.checkpoints import MARKER, MEMORY, MEMORY_ARRAYS, complete_checkpoints
from gradscope.training.config import TrainConfig
from gradscope.training.grid import _cell_command
from gradscope.training.train import train
from tests.forked import ForkedPython
from tests.trained import MakeRun
from tests.training.interrupted import LONG, assert_same_run, config_for

pytestmark = pytest.mark.slow  # whole runs of TRL


BETWEEN_STEPS = """
import os, signal
from gradscope.training.grpo import trainer
append = trainer.append_metrics
def append_and_die(run, step, metrics):
    append(run, step, metrics)
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
trainer.append_metrics = append_and_die
from gradscope.__main__ import run
run()
"""
"""Right after the third step is written, which no checkpoint holds."""
INSIDE_A_CHECKPOINT = """
import os, pathlib, signal, torch
save = torch.save
def save_half_and_die(state, file, *arguments, **options):
    save(state, file, *arguments, **options)
    if str(file).endswith("checkpoint-4/optimizer.pt"):
        os.truncate(file, os.path.getsize(file) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
torch.save = save_half_and_die
from gradscope.__main__ import run
run()
"""
"""With the weights of checkpoint-4 written, and half of the optimizer's state."""


def run_until_killed(code: str, config: TrainConfig, *, resume: bool) -> None:
    process = ForkedPython(["-c", code, *_cell_command(config, resume=resume), "--quiet"])
    assert process.wait() == -signal.SIGKILL


def test_a_run_killed_twice_equals_the_uninterrupted(short_run: MakeRun, tmp_path: Path) -> None:
    """Under a formulation that keeps more than weights: a head and the state of its optimizer."""
    config = config_for(tmp_path / "run", advantage="token_critic")
    run, last = Path(config.output), checkpoint_path(tmp_path / "run", 5)
    run_until_killed(BETWEEN_STEPS, config, resume=False)
    assert metrics_path(run).read_bytes().count(b"\n") == 3
    run_until_killed(INSIDE_A_CHECKPOINT, config, resume=True)
    assert (checkpoint_path(run, 4) / "model.safetensors").is_file()
    assert not (checkpoint_path(run, 4) / MARKER).exists()
    assert complete_checkpoints(run) == (0, 2)
    full = short_run(**LONG, advantage="token_critic")
    assert_same_run(train(config, resume=True), full)
    for name in (MEMORY, MEMORY_ARRAYS):
        assert (last / name).read_bytes() == (checkpoint_path(full, 5) / name).read_bytes()
    assert [number for number in (2, 4, 5) if (checkpoint_path(run, number) / MEMORY).is_file()] == [5]
    assert json.loads((last / MEMORY).read_text()) == {"num_updates": 5.0}

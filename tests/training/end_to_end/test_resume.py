"""Interrupted runs: what stays on disk, and that going on ends where the uninterrupted run does."""

from pathlib import Path

import pytest

from gradscope.rollouts.run_folder import metrics_path, read_metrics
from gradscope.rollouts.store import step_files
from gradscope.training.checkpoints import complete_checkpoints
from gradscope.training.train import train
from tests.trained import MakeRun
from tests.training.interrupted import LONG, assert_same_run, interrupted

pytestmark = pytest.mark.slow  # whole runs of TRL


@pytest.mark.parametrize(
    "stop",
    [(4, "held-out prompts before"), (1, "steps"), (4, "held-out prompts after")],
    ids=lambda stop: f"{stop[1]}-{stop[0]}",
)
def test_resumed_run_equals_the_uninterrupted(short_run: MakeRun, tmp_path: Path, stop: tuple[int, str]) -> None:
    config = interrupted(tmp_path / "run", stop)
    done = stop[0] if stop[1] == "steps" else 0 if "before" in stop[1] else 5
    assert [path.name for path in step_files(tmp_path / "run")] == [f"step_{n:05d}.parquet" for n in range(1, done + 1)]
    assert list(read_metrics(tmp_path / "run")) == list(range(1, done + 1))
    before = metrics_path(tmp_path / "run").read_bytes().splitlines()
    before = before[: max(complete_checkpoints(tmp_path / "run"), default=0)]
    assert_same_run(train(config, resume=True), short_run(**LONG))
    assert metrics_path(tmp_path / "run").read_bytes().splitlines()[: len(before)] == before


def test_an_adapter_and_sampling_in_rounds_resume(short_run: MakeRun, tmp_path: Path) -> None:
    settings = {"lora_rank": 2, "sampling": "dynamic", "max_resampling": 2}
    config = interrupted(tmp_path / "run", (3, "steps"), **settings)
    full = short_run(**LONG, **settings)
    assert_same_run(train(config, resume=True), full, weights="adapter_model.safetensors")

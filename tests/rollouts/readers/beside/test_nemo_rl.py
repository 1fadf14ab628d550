from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from gradscope.rollouts.readers.beside.nemo_rl import NO_NORMS
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.beside.test_step_weights import write_model
from tests.rollouts.test_event_file import record, scalar

LOG = REPOSITORY / "fixtures" / "logs" / "nemo_rl"


def copy_of(tmp_path: Path) -> Path:
    return shutil.copytree(LOG, tmp_path / "logs")


def test_without_norms_the_switch_is_named(tmp_path: Path) -> None:
    run = read_run(copy_of(tmp_path))
    assert run.metrics == {}
    assert NO_NORMS in run.source.missing
    assert (run.settings.get("trainer"), run.settings.get("bf16")) == ("nemo-rl", True)


def test_events_weights_and_configuration_are_found_beside_the_data(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    (log / "exp_001" / "tensorboard").mkdir()
    events = log / "exp_001" / "tensorboard" / "events.out.tfevents.1.a"
    events.write_bytes(record(scalar(1, b"train/grad_norm", 0.5)) + record(scalar(1, b"train/reward", 0.25)))
    checkpoint = write_model(log / "results" / "grpo" / "step_1" / "hf").parent
    (checkpoint / "config.yaml").write_text("policy:\n  precision: float32\n  train_micro_batch_size: 4\n")
    (log / "results" / "grpo" / "step_2" / "policy" / "weights").mkdir(parents=True)
    run = read_run(log / "exp_001")
    assert run.metrics == {1: {"grad_norm": 0.5, "reward": 0.25}}
    assert [weights.num_updates for weights in run.weights] == [1]
    assert "convert_dcp_to_hf.py" in run.unmerged_weights[2].advice
    assert (run.settings.get("bf16"), run.settings.get("per_device_train_batch_size")) == (False, 4)


def test_events_beside_the_data_are_read_and_those_of_a_sibling_are_not(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    other = log / "exp_002" / "tensorboard"
    other.mkdir(parents=True)
    other.joinpath("events.out.tfevents.1.a").write_bytes(record(scalar(1, b"train/grad_norm", 9.0)))
    assert read_run(log / "exp_001").metrics == {}
    os.mkfifo(log / "events.out.tfevents.1.a")
    assert read_run(log / "exp_001").metrics == {}
    (log / "tensorboard").mkdir()
    (log / "tensorboard" / "events.out.tfevents.1.a").write_bytes(record(scalar(1, b"train/grad_norm", 0.5)))
    assert read_run(log / "exp_001").metrics == {1: {"grad_norm": 0.5}}


def test_metrics_may_be_lines_of_json(tmp_path: Path) -> None:
    log = copy_of(tmp_path)
    (log / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/grad_norm": 0.5}) + "\n")
    assert read_run(log / "exp_001").metrics == {1: {"grad_norm": 0.5}}

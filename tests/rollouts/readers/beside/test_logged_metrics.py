from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.test_event_file import record, scalar

LOGS = REPOSITORY / "fixtures" / "logs"
EVENTS = record(scalar(1, b"a/b", 0.5)) + record(scalar(2, b"a/b", 2.0))


def copy_of(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(LOGS / name, tmp_path / name)


@pytest.mark.parametrize("name", ["slime", "open_instruct"])
def test_tensorboards_files_in_the_folder_are_read(tmp_path: Path, name: str) -> None:
    log = copy_of(name, tmp_path)
    assert read_run(log).metrics == {}
    (log / "tensorboard").mkdir()
    (log / "tensorboard" / "events.out.tfevents.1.host").write_bytes(EVENTS)
    run = read_run(log)
    assert run.metrics == {1: {"a/b": 0.5}, 2: {"a/b": 2.0}}
    assert run.source.files[-1] == str(log / "tensorboard" / "events.out.tfevents.1.host")


def test_damage_in_tensorboards_files_is_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    file = log / "events.out.tfevents.1.host"
    file.write_bytes(EVENTS[:-6] + b"?" + EVENTS[-5:])
    (lost,) = read_run(log).source.quarantined.lost
    assert lost.startswith(f"{file}: the record at byte ")


def test_who_stands_in_slimes_folder_of_rollouts_has_them_too(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    (log / "metrics.jsonl").write_text(json.dumps({"step": 1, "x": 2}) + "\n")
    assert read_run(log / "rollout_data").metrics == read_run(log / "rollout_data" / "0.pt").metrics == {1: {"x": 2.0}}


def test_files_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    log = copy_of("slime", tmp_path)
    for name in ("a", "b"):
        (log / name).mkdir()
        (log / name / "events.out.tfevents.1.host").write_bytes(EVENTS)
    assert read_run(log).metrics == {}

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gradscope.results.source import Quarantine
from gradscope.rollouts.readers.beside.metric_lines import metric_lines
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from tests.conftest import REPOSITORY
from tests.rollouts.test_event_file import record, scalar


def test_lines_of_one_step_are_joined_under_common_names(tmp_path: Path) -> None:
    lines = [{"step": 1, "x/norm": 0.5}, {"step": 1, "note": "text", "loss": 2}, {"step": None, "loss": 9}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    quarantine = QuarantineLog()
    assert metric_lines([file], {"x/norm": "grad_norm"}, quarantine) == {1: {"grad_norm": 0.5, "loss": 2.0}}
    assert quarantine.result() == Quarantine()


@pytest.mark.parametrize("damage", ["garbage", "[1]", '{"step": 2, "x": 9', "\x00"])
def test_a_line_that_cannot_be_read_is_lost(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x": 1}\n' + f"{damage}\n" * 2 + '\n{"step": 3, "x": 3}\n')
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {1: {"x": 1.0}, 3: {"x": 3.0}}
    (lost,) = quarantine.result().lost
    assert lost.startswith("2 lines of metrics cannot be used: ")
    assert lost.endswith(f"(first at {file}:2).")


def test_a_last_line_may_be_being_written(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x": 1}\n{"step": 2, "x')
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {1: {"x": 1.0}}
    assert quarantine.result() == Quarantine()


def test_a_file_that_is_not_read_to_its_end_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_FLAWED", 5)
    file = tmp_path / "metrics.jsonl"
    file.write_text("garbage\n" * 6)
    quarantine = QuarantineLog()
    assert metric_lines([file], {}, quarantine) == {}
    assert quarantine.result().lost[-1] == f"{file} has no row in 5 lines from line 1 on."


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
    run = read_run(log)
    assert run.metrics == {}
    assert run.source.missing[-1].startswith(f"TensorBoard's files lie in 2 folders ({log}/a, {log}/b): which are")

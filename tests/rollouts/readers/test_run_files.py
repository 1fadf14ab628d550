import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradscope.errors import InputError
from gradscope.results.source import Quarantine
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.run_files import (
    CheckpointLayout,
    metric_lines,
    numbered_folders,
    saved_weights,
    trainer_settings,
)
from tests.conftest import REPOSITORY
from tests.rollouts.test_event_file import record, scalar


def test_the_first_readable_file_counts_and_what_is_given_wins(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{[")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "config.yaml").write_text("actor:\n  n: 2\n  m: 3\n")
    (tmp_path / "given.toml").write_text("[actor]\nn = 5\n")
    files = [tmp_path / name for name in ("none.json", "broken.yaml", "list.json", "config.yaml")]
    request = ReadRequest(path=tmp_path, options=ReadOptions(trainer_args=tmp_path / "given.toml"))
    settings = trainer_settings(request, "some", files)
    assert dict(settings.values) == {"actor.n": 5, "actor.m": 3, "trainer": "some"}
    assert settings.origin == f"{tmp_path / 'config.yaml'} and {tmp_path / 'given.toml'}"
    bare = trainer_settings(ReadRequest(path=tmp_path), "some", [])
    assert (dict(bare.values), bare.origin) == ({"trainer": "some"}, None)


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
    monkeypatch.setattr(tables, "MOST_FLAWED", 5)
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


LAYOUT = CheckpointLayout(
    patterns=("step_*", "*/step_*"), inside=("hf", "weights/*"), merge=lambda folder: f"Merge {folder.name}."
)


def write_model(folder: Path, *, adapter: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("adapter_config.json" if adapter else "config.json")).write_text("{}")
    save_file({"w": torch.zeros(1)}, folder / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    return folder


def test_models_inside_checkpoints_are_listed_and_other_checkpoints_say_what_to_run(tmp_path: Path) -> None:
    write_model(tmp_path / "step_2" / "weights" / "merged")
    write_model(tmp_path / "step_1")
    (tmp_path / "step_3" / "hf").mkdir(parents=True)
    (tmp_path / "step_3" / "hf" / "config.json").write_text("{}")
    (tmp_path / "step_3" / "hf" / "tokenizer.json").write_text("{}")
    saved = saved_weights(ReadRequest(path=tmp_path), LAYOUT, [tmp_path])
    assert [(weights.num_updates, weights.path.name) for weights in saved["weights"]] == [(1, "step_1"), (2, "merged")]
    assert {number: (reason.cause, reason.advice) for number, reason in saved["unmerged_weights"].items()} == {
        3: ("weights_unmerged", "Merge step_3.")
    }


def test_checkpoints_of_two_runs_are_nobodys(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write_model(tmp_path / run / "step_1")
    assert list(numbered_folders(tmp_path, LAYOUT.patterns)) == []
    assert [number for number, _ in numbered_folders(tmp_path / "one", LAYOUT.patterns)] == [1]


def test_the_first_weights_are_those_given_and_of_the_same_kind(tmp_path: Path) -> None:
    write_model(tmp_path / "step_1")
    first = write_model(tmp_path / "first")
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=first))
    assert [weights.num_updates for weights in saved_weights(request, LAYOUT, [tmp_path])["weights"]] == [0, 1]
    other = write_model(tmp_path / "other", adapter=True)
    request = ReadRequest(path=tmp_path, options=ReadOptions(initial_weights=other))
    with pytest.raises(InputError, match="adapter"):
        saved_weights(request, LAYOUT, [tmp_path])

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.rollouts.places.fetch import awaited_note, bring_weights, fetched, place_extent

ROW = b'{"reward": 1}\n'
WEIGHTS = {
    "/run/1.jsonl": ROW,
    "/run/checkpoint-1/config.json": b"{}",
    "/run/checkpoint-1/model.safetensors": b"x" * 2000,
    "/run/checkpoint-1/tokenizer.json": b"{}",
    "/run/checkpoint-2/model.safetensors": b"y" * 500,
}


def test_a_path_is_left_as_it_is(tmp_path: Path) -> None:
    assert fetched(tmp_path) == tmp_path
    assert fetched("a//b") == Path("a//b")
    assert fetched((tmp_path / "a b").as_uri()) == tmp_path / "a b"


def test_several_processes_are_refused_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="Each of 4 processes would make the same copy of memory://run"):
        fetched("memory://run")
    assert fetched(tmp_path) == tmp_path
    assert fetched((tmp_path / "a").as_uri()) == tmp_path / "a"


def test_a_file_a_folder_and_a_glob_have_local_paths(memory: Any) -> None:
    memory.pipe(WEIGHTS)
    assert fetched("memory://run").name == "run"
    assert fetched("memory://run/1.jsonl").read_bytes() == ROW
    assert [file.name for file in fetched("memory://run/*.jsonl").parent.glob("*.jsonl")] == ["1.jsonl"]


def test_weights_are_copied_when_a_folder_is_asked_for(memory: Any) -> None:
    memory.pipe(WEIGHTS)
    folder = fetched("memory://run")
    assert awaited_note(folder) == ("Weights and tokenizers (3 files, 2.5 kB) are copied when a step needs them.",)
    bring_weights(folder / "checkpoint-1", None, Path("elsewhere"))
    assert (folder / "checkpoint-1" / "model.safetensors").read_bytes() == b"x" * 2000
    assert not (folder / "checkpoint-2" / "model.safetensors").exists()
    assert awaited_note(folder) == ("Weights and tokenizers (1 file, 500 bytes) are copied when a step needs them.",)
    memory.pipe("/run/checkpoint-1/model.safetensors", b"z" * 2000)
    fetched("memory://run")
    assert not (folder / "checkpoint-1" / "model.safetensors").exists(), "weights that changed wait again"
    bring_weights(folder / "checkpoint-1", folder / "checkpoint-2")
    assert (folder / "checkpoint-1" / "model.safetensors").read_bytes() == b"z" * 2000
    assert awaited_note(folder) == ()


def test_weights_that_cannot_be_had_say_so(memory: Any) -> None:
    memory.pipe(WEIGHTS)
    folder = fetched("memory://run")
    memory.rm("/run", recursive=True)
    with pytest.raises(InputError, match="There is nothing at memory://run"):
        bring_weights(folder / "checkpoint-1")


def test_nothing_waits_outside_a_copy(tmp_path: Path) -> None:
    assert awaited_note(tmp_path) == ()


def test_an_extent_changes_with_what_is_written(memory: Any) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    before = place_extent("memory://run")
    assert place_extent("memory://run") == before
    memory.pipe("/run/1.jsonl", ROW)
    assert place_extent("memory://run") != before
    with pytest.raises(InputError, match="There is nothing at"):
        place_extent("memory://gone")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match="s3://bucket/run needs the package s3fs") as caught:
        fetched("s3://bucket/run")
    assert caught.value.hint == "pip install s3fs"


def test_the_index_holds_names_sizes_and_marks_alone(memory: Any, cache: Path) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    fetched("memory://run")
    (index,) = cache.rglob("index.json")
    assert json.loads(index.read_bytes())["1.jsonl"][0] == len(ROW)

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.results.envelope import build_document
from gradscope.rollouts.readers.detect import read_run, runs_below
from gradscope.rollouts.sources.fetch import awaited_note, bring_weights, fetched, log_extent
from tests.conftest import REPOSITORY

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
    assert awaited_note(folder) == awaited_note(Path("elsewhere")) == ()


def test_weights_that_cannot_be_had_say_so(memory: Any) -> None:
    memory.pipe(WEIGHTS)
    folder = fetched("memory://run")
    memory.rm("/run", recursive=True)
    with pytest.raises(InputError, match="There is nothing at memory://run"):
        bring_weights(folder / "checkpoint-1")


def test_the_extent_of_a_url_changes_with_what_is_written(memory: Any) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    before = log_extent("memory://run")
    assert log_extent("memory://run") == before
    memory.pipe("/run/1.jsonl", ROW)
    assert log_extent("memory://run") != before
    with pytest.raises(InputError, match="There is nothing at"):
        log_extent("memory://gone")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match="s3://bucket/run needs the package s3fs") as caught:
        fetched("s3://bucket/run")
    assert caught.value.hint == "pip install s3fs"


def test_extents_change_with_what_is_written(tmp_path: Path) -> None:
    log = tmp_path / "completions" / "1.jsonl"
    log.parent.mkdir()
    log.write_text("a\n")
    before = log_extent(tmp_path)
    assert log_extent(tmp_path) == before
    assert before.keys() == log_extent(log).keys() == log_extent(log.parent / "*.jsonl").keys()
    assert log_extent(tmp_path.as_uri()) == before
    log.write_text("a\nb\n")
    assert log_extent(tmp_path) != before


def test_a_file_that_vanishes_between_listing_and_looking_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glob.glob", lambda _: [str(tmp_path / "gone.partial")])
    assert log_extent(tmp_path / "*") == {}


LOGS = REPOSITORY / "fixtures" / "logs"


def put(memory: Any, name: str, target: str) -> None:
    memory.put(str(LOGS / name), target, recursive=True)


def test_a_run_says_where_it_lies_and_where_each_row_was(memory: Any, cache: Path) -> None:
    put(memory, "messy.jsonl", "/logs/messy.jsonl")
    run = read_run("memory://logs/messy.jsonl")
    local = read_run(LOGS / "messy.jsonl")
    assert tuple(run.groups) == tuple(local.groups)
    assert run.source.path == "memory://logs/messy.jsonl"
    assert run.source.files == ("memory://logs/messy.jsonl",)
    assert all(reason.first.startswith("memory://logs/messy.jsonl:") for reason in run.source.quarantined.reasons)
    assert str(cache) not in str(run.source)


@pytest.mark.parametrize(
    "name", ["trl", "verl_v1", "slime", "nemo_rl", "open_instruct", "prime_rl", "inspect_ai", "evalplus", "tinker"]
)
def test_each_format_is_read_from_elsewhere_as_from_here(memory: Any, name: str) -> None:
    put(memory, f"{name}/", f"/logs/{name}")
    run, local = read_run(f"memory://logs/{name}"), read_run(LOGS / name)
    assert tuple(run.groups) == tuple(local.groups)
    assert run.metrics == local.metrics
    assert run.source.format == local.source.format
    assert len(run.source.files) == len(local.source.files)


def test_a_document_has_the_digests_of_the_copies(memory: Any) -> None:
    put(memory, "trl/", "/logs/trl")
    remote, local = (
        build_document("x", {}, files=read_run(path).source.files, definitions={})["inputs"]
        for path in ("memory://logs/trl", LOGS / "trl")
    )
    assert [file["path"] for file in remote] == [file["path"].replace(str(LOGS), "memory://logs") for file in local]
    assert [file["sha256"] for file in remote] == [file["sha256"] for file in local]


@pytest.mark.parametrize(
    ("files", "url", "message"),
    [
        ({"/run/a.jsonl": b"{}\n"}, "memory://run", "memory://run is not a log that gradscope knows"),
        ({"/run/a.jsonl": b""}, "memory://run/a.jsonl", "The file memory://run/a.jsonl is empty"),
        ({"/run/a.pkl": b"x"}, "memory://run/a.pkl", "memory://run/a.pkl looks like a pickle"),
        ({"/run/val_rollouts_1.pkl": b"x"}, "memory://run", "memory://run/val_rollouts_1.pkl is RAGEN's"),
    ],
)
def test_errors_name_the_url(memory: Any, cache: Path, files: dict[str, bytes], url: str, message: str) -> None:
    memory.pipe(files)
    with pytest.raises(InputError, match=message) as caught:
        read_run(url)
    assert str(cache) not in f"{caught.value} {caught.value.message} {caught.value.hint}"


def test_a_run_further_down_is_named_by_its_url(memory: Any) -> None:
    put(memory, "trl/", "/logs/trl")
    with pytest.raises(InputError, match="memory://logs is not a run itself, but memory://logs/trl is") as caught:
        read_run("memory://logs")
    assert caught.value.hint == "Name it: memory://logs/trl"


def test_runs_below_a_url_are_listed(memory: Any) -> None:
    put(memory, "trl/", "/logs/a")
    put(memory, "trl/", "/logs/b")
    assert [run.name for run in runs_below("memory://logs")] == ["a", "b"]
    assert read_run(runs_below("memory://logs")[1]).source.path == "memory://logs/b"


def test_what_to_run_on_shards_names_the_url(memory: Any, cache: Path) -> None:
    put(memory, "nemo_rl/", "/logs/run")
    memory.pipe("/logs/run/results/grpo/step_2/policy/weights/a.distcp", b"x")
    run = read_run("memory://logs/run")
    assert "--config memory://logs/run/results/grpo/step_2/config.yaml" in run.unmerged_weights[2].advice

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.results.envelope import build_document
from gradscope.rollouts.readers.detect import read_run, runs_below
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures" / "logs"


def put(memory: Any, name: str, place: str) -> None:
    memory.put(str(LOGS / name), place, recursive=True)


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
    there, here = (
        build_document("x", {}, files=read_run(path).source.files, definitions={})["inputs"]
        for path in ("memory://logs/trl", LOGS / "trl")
    )
    assert [one["path"] for one in there] == [one["path"].replace(str(LOGS), "memory://logs") for one in here]
    assert [one["sha256"] for one in there] == [one["sha256"] for one in here]


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


def test_runs_below_a_url_are_found(memory: Any) -> None:
    put(memory, "trl/", "/logs/a")
    put(memory, "trl/", "/logs/b")
    assert [run.name for run in runs_below("memory://logs")] == ["a", "b"]
    assert read_run(runs_below("memory://logs")[1]).source.path == "memory://logs/b"


def test_what_to_run_on_shards_names_the_url(memory: Any, cache: Path) -> None:
    put(memory, "nemo_rl/", "/logs/run")
    memory.pipe("/logs/run/results/grpo/step_2/policy/weights/a.distcp", b"x")
    run = read_run("memory://logs/run")
    assert "--config memory://logs/run/results/grpo/step_2/config.yaml" in run.unmerged_weights[2].advice

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.progress import no_progress
from gradscope.results.envelope import build_document
from gradscope.rollouts import fetch
from gradscope.rollouts.fetch import awaited_note, fetch_weights, fetched, in_bytes, log_extent, mirrored
from gradscope.rollouts.readers.detect import read_run, runs_below
from tests.conftest import LOGS
from tests.rollouts.readers.lines import refused

ROW = b'{"reward": 1}\n'


@pytest.fixture
def gets(memory: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were copied, in no order."""
    seen: list[str] = []
    get = type(memory).get_file

    def counted(self: Any, rpath: str, lpath: str, **options: Any) -> None:
        seen.append(rpath)
        get(self, rpath, lpath, **options)

    monkeypatch.setattr(type(memory), "get_file", counted)
    return seen


def copied(url: str) -> Path:
    return mirrored(url, no_progress).path


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_only_what_changed_is_copied_again(memory: Any, gets: list[str], cache: Path) -> None:
    memory.pipe({"/run/1.jsonl": ROW, "/run/2.jsonl": ROW})
    folder = copied("memory://run")
    assert folder.is_relative_to(cache / "gradscope" / "places")
    assert (folder / "1.jsonl").read_bytes() == ROW
    assert sorted(gets) == ["/run/1.jsonl", "/run/2.jsonl"]
    gets.clear()
    assert copied("memory://run/") == folder
    assert gets == []
    memory.pipe("/run/2.jsonl", ROW)  # of the same size, but written anew
    memory.pipe("/run/3.jsonl", ROW)
    memory.rm("/run/1.jsonl")
    copied("memory://run")
    assert sorted(gets) == ["/run/2.jsonl", "/run/3.jsonl"]
    assert files_below(folder) == ["2.jsonl", "3.jsonl"]


def test_a_file_that_becomes_a_folder_does_so_here_too(memory: Any) -> None:
    memory.pipe({"/run/1.jsonl": ROW, "/run/b/c.jsonl": ROW})
    folder = copied("memory://run")
    memory.rm("/run", recursive=True)
    memory.pipe({"/run/1.jsonl/2.jsonl": ROW, "/run/b": ROW, "/run/c.jsonl": ROW})
    copied("memory://run")
    assert files_below(folder) == ["1.jsonl/2.jsonl", "b", "c.jsonl"]
    memory.rm("/run", recursive=True)
    memory.pipe("/run", ROW)
    assert copied("memory://run") == folder
    assert folder.read_bytes() == ROW


def test_weights_wait_and_what_is_never_opened_leaves_its_name(memory: Any, gets: list[str]) -> None:
    memory.pipe({"/run/1.jsonl": ROW, "/run/checkpoint-1/model.safetensors": b"x" * 99, "/run/a.pkl": b"x" * 99})
    folder = copied("memory://run")
    assert gets == ["/run/1.jsonl"]
    assert files_below(folder) == ["1.jsonl", "a.pkl", "checkpoint-1/model.safetensors.awaited"]
    assert b"did not copy" in (folder / "a.pkl").read_bytes()


def test_a_cut_copy_is_discarded(memory: Any, gets: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    memory.pipe({"/run/1.jsonl": ROW, "/run/2.jsonl": ROW})
    get_file, rest_has_come = type(memory).get_file, Event()

    def cut_off(self: Any, rpath: str, lpath: str, **options: Any) -> None:
        get_file(self, rpath, lpath, **options)
        if rpath.endswith("1.jsonl"):
            rest_has_come.set()
        elif rest_has_come.wait(60):
            Path(lpath).write_bytes(ROW[:-3])

    monkeypatch.setattr(type(memory), "get_file", cut_off)
    assert "again" in refused(r"The copy of memory://run/2.jsonl was cut off", copied, "memory://run")
    assert not [name for name in files_below(cache) if name.endswith(("2.jsonl", ".partial"))]
    monkeypatch.setattr(type(memory), "get_file", get_file)
    gets.clear()
    folder = copied("memory://run")
    assert gets == ["/run/2.jsonl"]
    assert (folder / "2.jsonl").read_bytes() == ROW


def test_unmarked_files_are_copied_each_time(memory: Any, gets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    monkeypatch.setattr("gradscope.rollouts.listing._MARKS", ())
    copied("memory://run")
    copied("memory://run")
    assert len(gets) == 2


@pytest.mark.parametrize("index", [b"[", b"[1]", b'{"1.jsonl": 3}'])
def test_a_damaged_index_costs_a_copy_and_no_more(memory: Any, gets: list[str], cache: Path, index: bytes) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    copied("memory://run")
    (file,) = cache.rglob("index.json")
    file.write_bytes(index)
    copied("memory://run")
    assert len(gets) == 2
    assert list(json.loads(file.read_bytes())) == ["1.jsonl"]


def test_copied_bytes_are_reported_and_add_up(memory: Any) -> None:
    reports: list[tuple[int, int, str]] = []
    memory.pipe({"/run/1.jsonl": ROW * 100, "/run/2.jsonl": ROW})
    mirrored("memory://run", lambda *report: reports.append(report))
    total = len(ROW) * 101
    assert reports[0] == (0, total, "copying memory://run, 1.4 kB")
    assert reports[-1][:2] == (total, total)


def test_when_one_file_fails_the_others_end(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.listings, "MAX_REQUESTS", 2)
    memory.pipe({f"/run/{number}.jsonl": ROW for number in range(5)})

    def broken(self: Any, rpath: str, lpath: str, callback: Any, **options: Any) -> None:
        if rpath.endswith("1.jsonl"):
            raise PermissionError
        while True:  # a file without end
            callback.relative_update(1)

    monkeypatch.setattr(type(memory), "get_file", broken)
    refused("may not be read by you", copied, "memory://run")


def test_a_cache_that_cannot_be_written_is_said(memory: Any, cache: Path) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    cache.write_text("a file is in the way")
    assert "XDG_CACHE_HOME" in refused("There is no place for a copy of memory://run", copied, "memory://run")


def test_no_copy_leaves_its_folder(web: Any, cache: Path) -> None:
    (web.folder / "a.jsonl").write_bytes(ROW)
    folder = copied(f"{web.url}/x/..")
    assert folder.name == "root"
    assert folder.parent.name == "copy"


def test_a_file_on_its_way_stops_at_its_next_part(memory: Any) -> None:
    count = fetch._ByteCount(no_progress, [], "memory://run")
    count.stop()
    with pytest.raises(InterruptedError):
        count.add(1)


def test_the_cache_tells_no_password(web: Any, cache: Path) -> None:
    (web.folder / "a.jsonl").write_bytes(ROW)
    url = f"{web.url}/a.jsonl".replace("http://", "http://me:secret@") + "?sig=hush"
    assert copied(url).read_bytes() == ROW
    text = " ".join(files_below(cache)) + "".join(file.read_text() for file in cache.rglob("*.json*"))
    assert "secret" not in text
    assert "hush" not in text


def test_a_web_server_is_asked_for_what_changed(web: Any) -> None:
    (web.folder / "run").mkdir()
    (web.folder / "run" / "a.jsonl").write_bytes(ROW)
    folder = copied(f"{web.url}/run")
    web.seen.clear()
    assert copied(f"{web.url}/run") == folder
    assert not [line for line in web.seen if line == "GET /run/a.jsonl"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("gone.jsonl", "There is nothing at"), ("403/x", "may not be read"), ("500.jsonl", "the server answers 500")],
)
def test_what_a_web_server_refuses_is_said(web: Any, name: str, message: str) -> None:
    refused(message, copied, f"{web.url}/{name}")


def test_a_server_that_is_not_there_is_no_connection(web: Any) -> None:
    refused("no connection", copied, "http://127.0.0.1:1/a.jsonl")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (7.04e9, "7.0 GB")]
)
def test_bytes_read_well(number: float, text: str) -> None:
    assert in_bytes(int(number)) == text


@pytest.mark.parametrize(
    "kind", ["open to others", "of another user", "a link", "another user's link above it", "another user's above it"]
)
def test_a_copy_that_others_may_have_written_is_not_read(memory: Any, cache: Path, kind: str) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    home = copied("memory://run").parents[1]
    above = home.parent if "above" in kind else home
    if "link" in kind:
        above.rename(cache / "theirs")
        above.symlink_to(cache / "theirs")
    if kind == "open to others":
        home.chmod(0o777)
    elif "another user" in kind:
        if os.getuid():
            pytest.skip("only root gives files away")
        os.lchown(above, 65534, 65534)
    refused("others may have written there", copied, "memory://run")


def test_what_a_killed_process_left_of_a_copy_is_removed(memory: Any, cache: Path) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    home = copied("memory://run").parents[1]
    before = files_below(cache)
    memory.pipe("/run/1.jsonl", ROW * 2)
    process = os.fork()
    if process == 0:
        with patch.object(Path, "replace", lambda *_: os._exit(0)):
            copied("memory://run")
    os.waitpid(process, 0)
    assert len(list(home.glob(".*.partial"))) == 1
    copied("memory://run")
    assert files_below(cache) == before


def test_a_link_in_a_copy_is_removed(memory: Any, tmp_path: Path) -> None:
    memory.pipe({"/run/1.jsonl": ROW, "/run/a/2.jsonl": ROW})
    folder = copied("memory://run")
    (tmp_path / "theirs").mkdir()
    for path in (folder / "1.jsonl", folder / "a" / "2.jsonl", folder / "a"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(tmp_path / "theirs")
        if path.name != "2.jsonl":
            copied("memory://run")
    assert list((tmp_path / "theirs").iterdir()) == []
    assert (folder / "a" / "2.jsonl").read_bytes() == (folder / "1.jsonl").read_bytes() == ROW
    (folder / "1.jsonl").parent.parent.rename(tmp_path / "elsewhere")
    folder.parent.symlink_to(tmp_path / "elsewhere")
    assert copied("memory://run").parent.is_symlink() is False


def test_names_alone_cost_no_look_at_all_others(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = fetch.atomic_write
    monkeypatch.setattr(
        fetch, "atomic_write", lambda path, *_, **options: (written.append(path.name), write(path, *_, **options))
    )
    memory.pipe({f"/run/{number}.txt": b"x" for number in range(20)} | {"/run/1.jsonl": ROW})
    assert len(files_below(copied("memory://run"))) == 21
    assert written == ["index.json"]


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


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "The path is empty"), (None, "not by NoneType"), (["a"], "not by list"), ({"a": 1}, "not by dict")],
)
def test_what_names_no_path_is_refused(path: object, message: str) -> None:
    """An empty one was the current folder, and what is no text ended in a TypeError of ``re``."""
    with pytest.raises(UsageError, match=message):
        fetched(path)  # type: ignore[arg-type]


def test_several_processes_are_refused_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused("Each of 4 processes would make the same copy of memory://run", fetched, "memory://run", error=UsageError)
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
    fetch_weights(folder / "checkpoint-1", None, Path("elsewhere"))
    assert (folder / "checkpoint-1" / "model.safetensors").read_bytes() == b"x" * 2000
    assert not (folder / "checkpoint-2" / "model.safetensors").exists()
    assert awaited_note(folder) == ("Weights and tokenizers (1 file, 500 bytes) are copied when a step needs them.",)
    memory.pipe("/run/checkpoint-1/model.safetensors", b"z" * 2000)
    fetched("memory://run")
    assert not (folder / "checkpoint-1" / "model.safetensors").exists(), "weights that changed wait again"
    fetch_weights(folder / "checkpoint-1", folder / "checkpoint-2")
    assert (folder / "checkpoint-1" / "model.safetensors").read_bytes() == b"z" * 2000
    assert awaited_note(folder) == awaited_note(Path("elsewhere")) == ()


def test_weights_that_cannot_be_had_say_so(memory: Any) -> None:
    memory.pipe(WEIGHTS)
    folder = fetched("memory://run")
    memory.rm("/run", recursive=True)
    refused("There is nothing at memory://run", fetch_weights, folder / "checkpoint-1")


def test_the_extent_of_a_url_changes_with_what_is_written(memory: Any) -> None:
    memory.pipe("/run/1.jsonl", ROW)
    before = log_extent("memory://run")
    assert log_extent("memory://run") == before
    memory.pipe("/run/1.jsonl", ROW)
    assert log_extent("memory://run") != before
    refused("There is nothing at", log_extent, "memory://gone")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    hint = refused("s3://bucket/run needs the package s3fs", fetched, "s3://bucket/run", error=MissingDependencyError)
    assert hint == "pip install s3fs"


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


def test_a_file_that_vanishes_after_listing_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glob.glob", lambda _: [str(tmp_path / "gone.partial")])
    assert log_extent(tmp_path / "*") == {}


def put(memory: Any, name: str, target: str) -> None:
    memory.put(str(LOGS / name), target, recursive=True)


def test_a_run_says_where_it_lies_and_where_each_row_was(memory: Any, cache: Path) -> None:
    put(memory, "messy.jsonl", "/logs/messy.jsonl")
    run = read_run("memory://logs/messy.jsonl")
    assert tuple(run.groups) == tuple(read_run(LOGS / "messy.jsonl").groups)
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


def test_the_only_run_further_down_is_read_and_named_by_its_url(memory: Any) -> None:
    put(memory, "trl/", "/logs/trl")
    assert read_run("memory://logs").source.path == "memory://logs/trl"


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

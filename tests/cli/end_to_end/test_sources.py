"""Every command that takes a run takes its URL, answers alike, and says the URL wherever it would say a path."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.diagnostics.compared_runs import write_run
from tests.rollouts.test_fetch import files_below


@pytest.fixture
def remote(memory: Any, tiny_run: Path) -> str:
    """A small trained run, in memory."""
    memory.put(f"{tiny_run}/", "/runs/tiny", recursive=True)
    return "memory://runs/tiny"


def same_but_for_the_path(text: str, local: Path) -> str:
    text = text.replace(str(local), "RUN").replace("memory://runs/tiny", "RUN")
    return re.sub(r"\s+", " ", re.sub(r"note: Weights and tokenizers .* needs them.\n", "", text))


@pytest.mark.parametrize(
    "arguments",
    [
        ("degeneracy", "RUN"),
        ("passk", "RUN"),
        ("check", "RUN", "--require", "replay_grad_norm_error <= 1e-5"),
        ("rank", "RUN", "--step", "1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_answer_alike(cli: Cli, tiny_run: Path, remote: str, cache: Path, arguments: tuple[str, ...]) -> None:
    words = (*arguments, "--show", "notes")
    local, target = (cli(*(str(run) if word == "RUN" else word for word in words)) for run in (tiny_run, remote))
    assert (local.code, target.code) == (0, 0), target.err
    assert str(cache) not in target.out + target.err
    assert remote in target.err
    assert same_but_for_the_path(target.err, tiny_run) == same_but_for_the_path(local.err, tiny_run)


def test_a_step_copies_the_weights_that_it_needs(cli: Cli, remote: str, cache: Path) -> None:
    done = cli("replay", remote, "--step", "1")
    assert re.search(r"note: Weights and tokenizers \(\d+ files, .*\) are copied when a step needs them.", done.err)
    weights = [Path(name).parent.name for name in files_below(cache) if name.endswith(".safetensors")]
    assert "checkpoint-0" in weights
    assert len(weights) < len([name for name in files_below(cache) if "safetensors" in name])


def test_documents_and_pages_tell_the_url_alone(cli: Cli, remote: str, cache: Path, tmp_path: Path) -> None:
    document = cli("degeneracy", remote, "--json")
    names = files_below(cache)  # rewards alone need no weights
    assert [name for name in names if name.endswith(".safetensors.awaited")]
    assert not [name for name in names if name.endswith(".safetensors")]
    assert str(cache) not in document.out
    assert json.loads(document.out)["result"]["source"]["path"] == remote
    assert cli("report", remote, "--no-gradients", "--output", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert str(cache) not in page
    assert f"gradscope degeneracy {remote}" in page


def test_a_folder_of_runs_is_an_index(cli: Cli, memory: Any, tiny_run: Path, cache: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        memory.put(f"{tiny_run}/rollouts/", f"/runs/{name}/rollouts", recursive=True)
        memory.put(f"{tiny_run}/manifest.json", f"/runs/{name}/manifest.json")
    done = cli("report", "memory://runs", "--output", tmp_path / "index.html")
    assert done.code == 0, done.err
    page = (tmp_path / "index.html").read_text()
    assert "gradscope report memory://runs/a" in page
    assert str(cache) not in page + done.out + done.err


def test_runs_at_a_url_are_compared(cli: Cli, memory: Any, cache: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = write_run(tmp_path / "grid" / str(seed), seed=seed)
        memory.put(f"{folder}/", f"/grid/{seed}", recursive=True)
    done = cli("compare", "memory://grid", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"]["source"]["path"] == "memory://grid"
    assert str(cache) not in done.out + done.err
    memory.pipe("/grid/notes/notes.md", b"No log.")
    nothing = cli("compare", "memory://grid/notes")
    assert nothing.code == 2
    assert "A comparison needs two finished runs, and there are 0 (memory://grid/notes: " in nothing.err
    assert str(cache) not in nothing.err


def test_a_log_at_a_url_is_followed(cli: Cli, memory: Any, log: Path) -> None:
    memory.put(str(log), "/log.jsonl")
    done = cli("degeneracy", "memory://log.jsonl", "--follow", "--every", "0.01", "--idle", "0.05")
    assert done.code == 0, done.err
    assert [line.split()[:3] for line in done.out.splitlines()[1:3]] == [["1", "3", "0.667"], ["2", "3", "0.667"]]


def test_a_typo_in_a_url_is_said(cli: Cli, memory: Any) -> None:
    done = cli("degeneracy", "memory://nothing/here")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: There is nothing at memory://nothing/here.\nhint: ")

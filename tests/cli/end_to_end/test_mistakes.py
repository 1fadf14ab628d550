"""Mistakes that people make: one line names the mistake, and what the hint says to write works."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.diagnostics.compared_runs import write_run
from tests.trained import MakeRun


def refused(cli: Cli, *arguments: str | Path) -> str:
    """The hint of a command line that is refused in one line."""
    done = cli(*arguments)
    assert (done.code, done.out) == (2, ""), done.err
    error, hint = [line for line in done.err.splitlines() if not line.startswith("note: ")]
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return hint.removeprefix("hint: ")


@pytest.fixture
def word_path(tiny_run: Path, log: Path, samples: tuple[Path, Path], tmp_path: Path) -> Callable[[str], str]:
    """The paths that words in capitals stand for, and a requirement that holds."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.html").write_text("<!doctype html>mine")
    for seed in (0, 1):
        write_run(tmp_path / "grid" / str(seed), seed=seed)
    paths = {"RUN": tiny_run, "CHECKPOINT": tiny_run / "checkpoints/checkpoint-0", "LOG": log, "SAMPLES": samples[0]}
    paths |= {name: tmp_path / path for name, path in (("FOLDER", "full"), ("GRID", "grid"), ("NEW", "new.json"))}
    words = {**paths, "PAGE": tmp_path / "full" / "mine.html", "GATE": "frac_reward_zero_std <= 1"}
    return lambda word: str(words.get(word, word))


@pytest.mark.parametrize(
    ("typed", "hint", "corrected"),
    [
        ("degenracy LOG", r"`gradscope ([^`]+)`", "{}"),
        ("passk LOG", r"`gradscope (\w+)`", "{} LOG"),
        ("degeneracy CHECKPOINT", r": (\S+)$", "degeneracy {}"),
        ("rank RUN --advantge grpo", r"`gradscope ([^`]+)`", "{}"),
        ("rank RUN --step", r"`gradscope ([^`]+)`", "{}"),
        ("degeneracy RUN --reader gradscop", r"Did you mean '([\w-]+)'", "degeneracy RUN --reader {}"),
        ("rank RUN --step 1 --advantage x", r" are: (\w+)(?:, \w+){9}", "rank RUN --step 1 --advantage {}"),
        ("rank RUN --step 1 --advantage grpo,,sign", r"Write (--advantage \S+\w)", "rank RUN --step 1 {}"),
        ("rank RUN --step 99", r"It has steps (\d+)", "rank RUN --step {}"),
        ("rank RUN --step 1 --rows hidden --max-tokens 1", r"(--max-tokens \d+)", "rank RUN --step 1 --rows hidden {}"),
        ("replay RUN --step 2-1", r"Write (--step \S+\w)", "replay RUN {}"),
        ("degeneracy RUN --group-size '2;4'", r"Write (--group-size \d+)", "degeneracy RUN {}"),
        ("degeneracy RUN --group-size 1", r"Write (--group-size \d+)", "degeneracy RUN {}"),
        ("degeneracy RUN --base-pass-rate often", r"Write (--base-pass-rate [\d.]+)", "degeneracy RUN {}"),
        ("degeneracy RUN --target-degeneracy 20", r"Write (--target-degeneracy [\d.]+)", "degeneracy RUN {}"),
        ("degeneracy RUN --reward acc", r"It has: (\w+)", "degeneracy RUN --reward {}"),
        ("degeneracy RUN --show step", r"any of (\w+)", "degeneracy RUN --show {}"),
        ("degeneracy RUN --follow --json", "[Ll]eave()", "degeneracy RUN"),
        ("degeneracy RUN --idle 0.05 --every 0.01", "(--follow)", "degeneracy RUN --idle 0.05 --every 0.01 {}"),
        ("passk SAMPLES --k 4:1", r"Write (--k \S+\w)", "passk SAMPLES {}"),
        ("passk SAMPLES --k 0", r"Write (--k \d+)", "passk SAMPLES {}"),
        ("compare GRID --k 99", r"(--k \d+ --k \d+)", "compare GRID {}"),
        ("compare GRID --vary advantges", "[Ll]eave()", "compare GRID"),
        ("explain effective_rank --markdown", "[Ll]eave()", "explain effective_rank"),
        ("report RUN --no-gradients --output FOLDER", r"(--output \S+)", "report RUN --no-gradients {}"),
        ("report RUN --no-gradients --output PAGE", "(--force)", "report RUN --no-gradients --output PAGE {}"),
        ("check RUN", r"Add (--require '[^']+')", "check RUN {}"),
        ("check RUN --require 'frac_tied =< 1'", r"Write ('[^']+')", "check RUN --require {}"),
        ("check RUN --require 'frac_tied <= 100%'", r"Write ('[^']+')", "check RUN --require {}"),
        ("check RUN --require 'frac_tied 0.5'", r"a number: ('[^']+')", "check RUN --require {}"),
        ("check RUN --require 'frac_reward_zero <= 1'", r"Did you mean '(\w+)'", "check RUN --require '{} <= 1'"),
        (
            "check RUN --require GATE --allow-unknown frac_tied,",
            r"(--allow-unknown \w+)",
            "check RUN --require GATE {}",
        ),
        ("check RUN --require GATE --output FOLDER", "(--force)", "check RUN --require GATE --output FOLDER {}"),
        ("check RUN --track frac_tied --baseline NEW", "(--upd.*e)", "check RUN --track frac_tied --baseline NEW {}"),
    ],
    ids=lambda words: words.partition(" ")[0],
)
def test_a_command_that_is_corrected_as_its_hint_says_works(
    cli: Cli, word_path: Callable[[str], str], typed: str, hint: str, corrected: str
) -> None:
    match = re.search(hint, refused(cli, *map(word_path, shlex.split(typed))))
    assert match is not None
    words: list[str] = []
    for word in shlex.split(corrected):
        words += shlex.split(match[1]) if word == "{}" else [word_path(word).format(match[1])]
    done = cli(*words)
    assert done.code in ((0, 1) if words[0] == "check" else (0,)), done.err
    assert not done.err.startswith("error: ")


def test_a_step_without_weights_names_those_that_have_them(cli: Cli, short_run: MakeRun, tmp_path: Path) -> None:
    run = shutil.copytree(short_run(), tmp_path / "my run")
    command = shlex.split(refused(cli, "rank", run, "--step", "2").partition("Now: ")[2])
    assert command == ["gradscope", "rank", str(run), "--step", "1,3"]
    assert cli(*command[1:]).code == 0


def test_a_folder_of_runs_names_one_and_the_command_for_all(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "several" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "several" / name).symlink_to(tiny_run)
    hint = refused(cli, "degeneracy", tmp_path / "several")
    commands = [shlex.split(command)[1:] for command in re.findall(r"gradscope [^;]+", hint)]
    assert [command[0] for command in commands] == ["degeneracy", "report"]
    assert cli(*commands[0]).code == 0
    assert cli(*commands[1], "--output", tmp_path / "all.html").code == 0

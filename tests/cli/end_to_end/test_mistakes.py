"""More than thirty mistakes that people make: one line says what is wrong, and what the hint says to write works."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.diagnostics.compared_runs import write_run

RUN = ("--steps", "2", "--num-prompts", "4", "--group-size", "2", "--heldout-prompts", "2", "--heldout-samples", "2")


def refused(cli: Cli, *arguments: str | Path) -> str:
    """The hint of a command line that is refused in one line."""
    done = cli(*arguments)
    assert (done.code, done.out) == (2, ""), done.err
    error, hint = [line for line in done.err.splitlines() if not line.startswith("note: ")]
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return hint.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("command", "option", "typed"),
    [
        ("degeneracy", "--group-size", "2;4"),
        ("passk", "--k", "4:1"),
        ("replay", "--step", "2-1"),
        ("rank", "--advantage", "grpo,,sign"),
        ("check", "--allow-unknown", "frac_tied,"),
    ],
)
def test_what_the_hint_writes_works(
    cli: Cli, tiny_run: Path, samples: tuple[Path, Path], command: str, option: str, typed: str
) -> None:
    run = samples[0] if command == "passk" else tiny_run
    more = ("--require", "frac_reward_zero_std <= 1") if command == "check" else ()
    written = re.search(rf"Write ({option} \S*[\w@])", refused(cli, command, run, option, typed, *more))
    assert written is not None
    done = cli(command, run, *shlex.split(written[1]), *more)
    absent = "has no rollouts of step" in done.err or "group size" in done.err  # of this small run
    assert done.code == 0 or absent, done.err


@pytest.mark.parametrize(
    ("command", "option", "typed"), [("degeneracy", "--reader", "gradscop"), ("rank", "--advantage", "x")]
)
def test_a_wrong_name_prints_those_that_exist(cli: Cli, tiny_run: Path, command: str, option: str, typed: str) -> None:
    hint = refused(cli, command, tiny_run, option, typed)
    names = re.findall(r"[\w-]+", hint.partition(" are")[2])
    assert len(names) > 10
    meant = re.search(r"Did you mean '([\w-]+)'", hint)
    assert cli(command, tiny_run, option, meant[1] if meant else names[0]).code == 0


def test_a_step_without_weights_names_those_that_have_them(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert cli("train", "--output", run, "--quiet", *RUN, "--checkpoint-every", "2").code == 0
    command = shlex.split(refused(cli, "rank", run, "--step", "2").partition("Now: ")[2])
    assert command == ["gradscope", "rank", str(run), "--step", "1"]
    assert cli(*command[1:]).code == 0


def test_a_checkpoint_names_its_run(cli: Cli, tiny_run: Path) -> None:
    named = refused(cli, "degeneracy", tiny_run / "checkpoints/checkpoint-0").rpartition(": ")[2]
    assert Path(named) == tiny_run
    assert cli("degeneracy", named).code == 0


@pytest.mark.parametrize("typed", [("--advantge", "grpo"), ("--rows", "tokens"), ("--step",)])
def test_what_the_parser_refuses_points_at_a_page_that_opens(cli: Cli, tiny_run: Path, typed: tuple[str, ...]) -> None:
    page = re.search(r"`gradscope ([^`]+)`", refused(cli, "rank", tiny_run, *typed))
    assert page is not None
    assert cli(*page[1].split()).code == 0


@pytest.mark.parametrize(
    ("typed", "written", "remaining"),
    [
        (("degeneracy", "RUN", "--base-pass-rate", "often"), r"Write (--base-pass-rate [\d.]+)", 2),
        (("degeneracy", "RUN", "--target-degeneracy", "20"), r"Write (--target-degeneracy [\d.]+)", 2),
        (("degeneracy", "RUN", "--group-size", "1"), r"Write (--group-size \d+)", 2),
        (("degeneracy", "RUN", "--reward", "acc"), r"It has: (\w+)", 3),
        (("degeneracy", "RUN", "--show", "step"), r"any of (\w+)", 3),
        (("passk", "SAMPLES", "--k", "0"), r"Write (--k \d+)", 2),
        (("rank", "RUN", "--step", "99"), r"It has steps (\d+)", 3),
        (("rank", "RUN", "--step", "1", "--rows", "hidden", "--max-tokens", "1"), r"Write (--max-tokens \d+)", 6),
        (("check", "RUN"), r"Add (--require '[^']+')", 2),
        (("check", "RUN", "--require", "frac_reward_zero_std =< 1"), r"Write ('[^']+')", 3),
        (("check", "RUN", "--require", "frac_reward_zero_std=1"), r"Write ('[^']+')", 3),
        (("check", "RUN", "--require", "frac_reward_zero_std <= 100%"), r"Write ('[^']+')", 3),
        (("check", "RUN", "--require", "frac_reward_zero_std 0.5"), r"a number: ('[^']+')", 3),
        (("check", "RUN", "--require", "frac_reward_zero <= 1"), r"Did you mean '(\w+)'", 3),
        (("report", "RUN", "--no-gradients", "--output", "FOLDER"), r"(--output \S+)", 3),
        (("compare", "GRID", "--k", "99"), r"(--k \d+ --k \d+)", 2),
    ],
)
def test_what_a_hint_says_stands_in_for_what_was_typed(
    cli: Cli, word_path: Callable[[str], str], typed: tuple[str, ...], written: str, remaining: int
) -> None:
    """The first ``remaining`` words stay, and the hint's words follow; a metric alone is required again."""
    words = [word_path(word) for word in typed]
    result = re.search(written, refused(cli, *words))
    assert result is not None
    pasted = shlex.split(result[1])
    if typed[-1] == "frac_reward_zero <= 1":
        pasted = [f"{pasted[0]} <= 1"]
    done = cli(*words[:remaining], *pasted)
    assert done.code in ((0, 1) if typed[0] == "check" else (0,)), done.err
    assert not done.err.startswith("error: ")


@pytest.fixture
def word_path(tiny_run: Path, samples: tuple[Path, Path], tmp_path: Path) -> Callable[[str], str]:
    """What the words in capitals stand for."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.html").write_text("<!doctype html>mine")
    for seed in (0, 1):
        write_run(tmp_path / "grid" / str(seed), seed=seed)
    paths = {"RUN": tiny_run, "SAMPLES": samples[0], "FOLDER": tmp_path / "full", "GRID": tmp_path / "grid"}
    paths["PAGE"] = tmp_path / "full" / "mine.html"
    return lambda word: str(paths.get(word, word))


@pytest.mark.parametrize(
    ("typed", "more"),
    [
        (("check", "RUN", "--require", "frac_reward_zero_std <= 1", "--output", "FOLDER"), ("--force",)),
        (("report", "RUN", "--no-gradients", "--output", "PAGE"), ("--force",)),
        (("degeneracy", "RUN", "--idle", "0.05", "--every", "0.01"), ("--follow",)),
        (("check", "RUN", "--track", "frac_tied", "--baseline", "new.json"), ("--update-baseline",)),
    ],
)
def test_an_option_that_a_hint_names_can_be_added(
    cli: Cli, word_path: Callable[[str], str], tmp_path: Path, typed: tuple[str, ...], more: tuple[str, ...]
) -> None:
    words = [str(tmp_path / word) if word == "new.json" else word_path(word) for word in typed]
    assert all(option in refused(cli, *words) for option in more)
    assert cli(*words, *more).code == 0


@pytest.mark.parametrize(
    ("typed", "left_out"),
    [
        (("degeneracy", "RUN", "--follow", "--json"), 1),
        (("explain", "effective_rank", "--markdown"), 1),
        (("compare", "GRID", "--vary", "advantges"), 2),
    ],
)
def test_without_what_a_hint_leaves_out_the_command_works(
    cli: Cli, word_path: Callable[[str], str], typed: tuple[str, ...], left_out: int
) -> None:
    words = [word_path(word) for word in typed]
    assert re.search("[Ll]eave", refused(cli, *words))
    remaining = [word for word in words[: len(words) - left_out] if word != "--follow"]
    assert cli(*remaining).code == 0


def test_a_folder_of_runs_names_one_and_the_command_for_all(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "several" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "several" / name).symlink_to(tiny_run)
    hint = refused(cli, "degeneracy", tmp_path / "several")
    commands = [shlex.split(command)[1:] for command in re.findall(r"gradscope [^;]+", hint)]
    assert [command[0] for command in commands] == ["degeneracy", "report"]
    assert cli(*commands[0]).code == 0
    assert cli(*commands[1], "--output", tmp_path / "all.html").code == 0


@pytest.mark.parametrize(
    ("typed", "named"), [("degenracy", r"Did you mean '(\w+)'"), ("passk", r"`gradscope (\w+)`")], ids=["typo", "log"]
)
def test_the_command_that_a_hint_names_works(cli: Cli, log: Path, typed: str, named: str) -> None:
    match = re.search(named, cli(typed, log).err)
    assert match is not None
    assert cli(match[1], log).code == 0

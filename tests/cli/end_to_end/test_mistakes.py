"""Mistakes in options, as people make them: one line says what is wrong, and what the hint says to write works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

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
        ("degeneracy", "--group-size", "4-2"),
        ("degeneracy", "--group-size", "two"),
        ("passk", "--k", "1 2"),
        ("passk", "--k", "4:1"),
        ("passk", "--k", "1.5"),
        ("rank", "--step", "2-1"),
        ("rank", "--step", "1;2"),
        ("replay", "--step", "last"),
        ("rank", "--advantage", "grpo,,sign"),
        ("rank", "--advantage", ",grpo"),
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


@pytest.mark.parametrize(("option", "typed"), [("--reader", "gradscop"), ("--advantage", "grop"), ("--advantage", "x")])
def test_a_wrong_name_prints_those_that_there_are(cli: Cli, tiny_run: Path, option: str, typed: str) -> None:
    hint = refused(cli, "rank", tiny_run, "--step", "1", option, typed)
    names = re.findall(r"[\w-]+", hint.partition(" are")[2])
    assert len(names) > 10
    meant = re.search(r"Did you mean '([\w-]+)'", hint)
    assert cli("rank", tiny_run, "--step", "1", option, meant[1] if meant else names[0]).code == 0


def test_a_step_without_weights_names_those_that_have_them(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert cli("train", "--output", run, "--quiet", *RUN, "--checkpoint-every", "2").code == 0
    command = shlex.split(refused(cli, "rank", run, "--step", "2").partition("Now: ")[2])
    assert command == ["gradscope", "rank", str(run), "--step", "1"]
    assert cli(*command[1:]).code == 0


@pytest.mark.parametrize("inner", ["checkpoints", "checkpoints/checkpoint-0"])
def test_a_checkpoint_names_its_run(cli: Cli, tiny_run: Path, inner: str) -> None:
    named = refused(cli, "degeneracy", tiny_run / inner).rpartition(": ")[2]
    assert Path(named) == tiny_run
    assert cli("degeneracy", named).code == 0


@pytest.mark.parametrize("typed", [("--advantge", "grpo"), ("--rows", "tokens"), ("--step",), ("--seed", "x")])
def test_what_the_parser_refuses_points_at_a_page_that_opens(cli: Cli, tiny_run: Path, typed: tuple[str, ...]) -> None:
    page = re.search(r"`gradscope ([^`]+)`", refused(cli, "rank", tiny_run, *typed))
    assert page is not None
    assert cli(*page[1].split()).code == 0

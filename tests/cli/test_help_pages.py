import re
from pathlib import Path
from typing import Any

import pytest

from gradscope.advantages.registry import ALL_FORMULATIONS
from gradscope.cli.app import command
from gradscope.cli.help_pages import HELP_NAMES, examples_in
from gradscope.rollouts.readers.detect import FORMATS
from tests.cli.conftest import Cli

COMMANDS: dict[str, Any] = command().commands


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_first_page_fits_a_terminal_and_opens_with_examples(cli: Cli, name: str) -> None:
    done = cli(name, "--help")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert lines.index("Examples") <= 4
    assert "─ Common ─" in done.out
    assert f"all options: gradscope {name} --help-all" in done.out


def test_the_page_of_all_commands_fits_a_terminal_with_a_line_for_each(cli: Cli) -> None:
    lines = cli("--help").out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_first_page_shows_at_most_eight_options_and_all_of_them_exist(name: str) -> None:
    own = {flag for one in COMMANDS[name].params for flag in one.opts}
    assert not own & set(HELP_NAMES)
    assert (name != "config") <= len(COMMANDS[name].common) <= 8
    assert set(COMMANDS[name].common) <= own


@pytest.mark.parametrize("name", [[], ["rank"]], ids=" ".join)
def test_h_is_help(cli: Cli, name: list[str]) -> None:
    assert cli(*name, "-h") == cli(*name, "--help")


def test_everything_has_every_option_and_the_names_that_options_take(cli: Cli) -> None:
    text = " ".join(cli("rank", "--help-all").out.split())
    assert all(one.opts[0] in text for one in COMMANDS["rank"].params if one.param_type_name == "option")
    assert f"--advantage: {', '.join(ALL_FORMULATIONS)}" in text
    assert f"--reader: {', '.join(reader.name for reader in FORMATS)}" in text


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_whole_with_its_names_choices_and_default(cli: Cli, name: str) -> None:
    done = cli(name, "--help-all")
    page = done.out
    assert (done.code, done.err) == (0, "")
    assert max(map(len, page.splitlines())) <= 80
    assert "Examples" in page
    assert "…" not in page
    assert "<bool>" not in page
    assert re.fullmatch(rf"Usage: gradscope {name} \[OPTIONS\]( \[?[A-Z_]+\]?(\.\.\.)?)?", page.splitlines()[0])
    reported = " ".join(line.strip("│ ") for line in page.splitlines())
    for first in COMMANDS[name].params:
        assert all(flag in reported for flag in first.opts if flag.startswith("--"))
        assert all(word in reported for word in (first.metavar or "").split("|"))
        assert first.help or first.param_type_name == "argument"
        assert " ".join((first.help or "").replace("\\[", "[").split()) in reported
    if name == "rank":
        assert reported.count("[default: auto]") == 4
        assert "[default: None]" not in reported


def test_a_long_example_goes_on_behind_a_backslash() -> None:
    shown = examples_in(["gradscope rank my-run " + "--step 1 " * 10 + "--json"])
    assert max(map(len, shown.splitlines())) <= 78
    assert re.sub(r" \\\n +", " ", shown).strip() == "gradscope rank my-run " + "--step 1 " * 10 + "--json"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("degeneracy --success-threshold", text) for text in ("1_0", "nan", "٣", "1e400", "9" * 400, "")),
        *((option, "1_0") for option in ("degeneracy --every", "train --seed", "train --beta", "train --jobs")),
    ],
)
def test_numbers_of_options_have_the_grammar_of_all_others(cli: Cli, tmp_path: Path, option: str, text: str) -> None:
    command, flag = option.split()
    done = cli(*([command] if command == "train" else [command, tmp_path]), flag, text)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{flag}'" in done.err


def test_whole_numbers_and_bounds_of_options_are_held_to(cli: Cli, tmp_path: Path) -> None:
    for option, text in (("--seed", "1.5"), ("--jobs", "0"), ("--steps", "1e3")):
        assert f"Invalid value for '{option}'" in cli("train", option, text, "--output", tmp_path / "run").err
    assert "no such option" not in cli("degeneracy", tmp_path, "--success-threshold", " -.5e0").err.lower()

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gradscope.cli.app import command
from tests.cli.conftest import Cli
from tests.conftest import REPOSITORY

COMMANDS: dict[str, Any] = command().commands


def test_the_commands_are_those_that_work() -> None:
    analyses = {"degeneracy", "passk", "rank", "replay", "report", "claims", "compare", "check", "spike"}
    assert set(COMMANDS) == {"config", "demo", "train", "explain", "reduce", *analyses}


OF_OUTPUT = {"--json", "--output", "--force", "--quiet", "--strict"}
OF_A_MODEL = {"--device", "--dtype", "--model", "--initial", "--run-config", "--completion-ids"}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"config", "demo", "train", "explain", "reduce"}))
def test_commands_share_the_options_of_output_and_of_a_model(name: str) -> None:
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}
    assert flags >= (OF_OUTPUT | OF_A_MODEL if name in ("rank", "replay", "report", "check") else OF_OUTPUT)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_parses_and_is_in_the_help_as_it_is_typed(cli: Cli, name: str) -> None:
    page = re.sub(r"\\?\s+", "", cli(name, "--help-all").out)
    for example in import_module(f"gradscope.cli.commands.{name}").EXAMPLES:
        program, named, *arguments = shlex.split(example)
        assert program == "gradscope"
        with COMMANDS[named].make_context(named, arguments, resilient_parsing=False) as context:
            assert context.params
        assert re.sub(r"\s+", "", example) in page


def test_no_arguments_say_where_to_begin(cli: Cli) -> None:
    started = cli()
    assert (started.code, started.err) == (0, "")
    lines = started.out.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80
    assert {line.split()[1] for line in lines[2:]} == {"degeneracy", "report", "demo", "--help"}


def test_the_help_names_the_exit_codes(cli: Cli) -> None:
    text = " ".join(cli("--help").out.split())
    for part in ("0 done", "1 a check failed", "2 usage, or input that is unusable", "3 a bug", "130 interrupted"):
        assert part in text


def test_brackets_in_help_are_not_markup(cli: Cli) -> None:
    assert "[tool.gradscope.check]" in " ".join(cli("check", "--help-all").out.split())
    assert "[default: grpo]" in " ".join(cli("train", "--help-all").out.split())


PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((REPOSITORY / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_parses(page: Path) -> None:
    """What is shown as typed, in a block or as a cell of a table; dots stand for a value."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    typed = re.findall(r"^(?:\$ |    )gradscope (.+)$", text, flags=re.MULTILINE)
    typed += re.findall(r"\| `gradscope ([a-z]+ [^`]+)` \|", text)
    for line in typed:
        name, *arguments = shlex.split(line.replace(" ...", " x"), comments=True)
        if "$" not in line and ";" not in line:
            with COMMANDS[name].make_context(name, arguments) as context:
                assert context.params

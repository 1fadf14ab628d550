from __future__ import annotations

from typing import Any

import pytest

from gradscope.cli.app import command as app
from gradscope.cli.arguments.options import parse_show, show_option
from gradscope.errors import UsageError
from gradscope.render.terminal.names import TABLES, choices_of

COMMANDS: dict[str, Any] = app().commands

SHARED = {
    "--step": ("Steps to compute.", ("rank", "replay", "report")),
    "--reward": ("One reward function instead of the scalar reward; the main one of several.", ("degeneracy", "check")),
    "--success-threshold": (
        "A rollout passes at this reward or more; for rewards that are not 0/1.",
        ("degeneracy", "passk", "check", "report"),
    ),
    "--reader": (
        "Force a reader instead of detecting it.",
        ("degeneracy", "passk", "rank", "replay", "check", "report", "claims", "spike"),
    ),
    "--initial-weights": ("The weights before the first update", ("rank", "replay", "check", "report")),
    "--json": ("Print one JSON document and nothing else.", ("degeneracy", "passk", "rank", "compare", "report")),
}


@pytest.mark.parametrize(
    ("flag", "command"), [(flag, command) for flag, (_, commands) in SHARED.items() for command in commands]
)
def test_an_option_has_one_wording_in_every_command(flag: str, command: str) -> None:
    (option,) = [one for one in COMMANDS[command].params if flag in one.opts]
    assert option.help.startswith(SHARED[flag][0])


@pytest.mark.parametrize("command", sorted(TABLES))
def test_every_table_of_a_command_is_named_at_its_option_and_taken(command: str) -> None:
    names = choices_of(command)
    assert all(name in (show_option(command).help or "") for name in names)
    assert parse_show(command, [",".join(names)]) == names
    with pytest.raises(UsageError, match="--show knows no 'nothing'"):
        parse_show(command, ["nothing"])

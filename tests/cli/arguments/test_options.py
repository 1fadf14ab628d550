from __future__ import annotations

from typing import Any

import pytest

from gradscope.cli.app import command as app

COMMANDS: dict[str, Any] = app().commands

SHARED = {
    "--step": ("Steps to compute.", ("rank", "replay", "report")),
    "--reward": ("One reward function instead of the scalar reward.", ("degeneracy", "check")),
    "--success-threshold": (
        "A rollout passes at this reward or more; for rewards that are not 0/1.",
        ("degeneracy", "passk", "check", "report"),
    ),
    "--reader": (
        "Force a reader instead of detecting it.",
        ("degeneracy", "passk", "rank", "replay", "check", "report"),
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

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli

SHARED = {
    "--step": ("Steps to compute (repeatable); all by default.", ("rank", "replay", "report")),
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
def test_an_option_has_one_wording_in_every_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, flag: str, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("TERMINAL_WIDTH", "240")
    help_text = cli(command, "--help").out
    panels = [line for line in help_text.splitlines() if line.startswith("│ --")]
    (line,) = [line for line in panels if flag in line.partition("  ")[0].replace(",", " ").split()]
    assert SHARED[flag][0] in line

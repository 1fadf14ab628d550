from typing import Any

import pytest
from typer.testing import CliRunner

from gradscope.cli import app as whole
from gradscope.cli.app import command as app
from gradscope.cli.arguments.options import complete_formulation, complete_metric, parse_show, show_option
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
    with pytest.raises(UsageError, match="--show does not take 'nothing'"):
        parse_show(command, ["nothing"])


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [("dr_", ["dr_grpo"]), ("sign,dr_", ["sign,dr_grpo"]), ("nothing", []), ("sig", ["sign", "sign:c="])],
)
def test_the_last_formulation_of_a_list_is_completed(incomplete: str, completed: list[str]) -> None:
    assert complete_formulation(incomplete) == completed


def test_metrics_are_those_of_the_catalogue() -> None:
    assert complete_metric("frac_reward_zero") == ["frac_reward_zero_std"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("gradscope explain frac_reward_zero", "frac_reward_zero_std"),
        ("gradscope check run --track frac_reward_zero", "frac_reward_zero_std"),
        ("gradscope check run --require frac_reward_zero", "frac_reward_zero_std"),
        *((f"gradscope {command} run --advantage dr_", "dr_grpo") for command in ("rank", "replay", "claims")),
    ],
)
def test_a_shell_completes(words: str, completed: str) -> None:
    asked = {"_GRADSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    answer = CliRunner().invoke(whole.app, env=asked, prog_name="gradscope")
    assert answer.stdout.split() == [completed]

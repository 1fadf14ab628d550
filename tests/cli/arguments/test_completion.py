"""What a shell gets that asks for completions."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gradscope.cli.app import app
from gradscope.cli.arguments.completion import complete_formulation, complete_metric


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
    answer = CliRunner().invoke(app, env=asked, prog_name="gradscope")
    assert answer.stdout.split() == [completed]

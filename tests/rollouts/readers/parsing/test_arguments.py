"""Arguments of a trainer are what they can be."""

from __future__ import annotations

from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.arguments import require_arguments


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"beta": 0, "epsilon": 0.2, "epsilon_high": None, "temperature": 0.7, "num_generations": 8},
        {"scale_rewards": True, "loss_type": "dapo", "reward_weights": [1, 0.5], "chat_template_kwargs": {}},
        {"scale_rewards": "batch", "entropy_coef": -0.1, "unknown": object()},
    ],
)
def test_what_a_trainer_has_is_read(values: dict[str, Any]) -> None:
    require_arguments(values, "args.json")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("beta", "x", "a finite number from 0 on"),
        ("beta", True, "a finite number from 0 on"),
        ("beta", float("nan"), "a finite number from 0 on"),
        ("beta", -0.1, "a finite number from 0 on"),
        ("beta", 10**400, "a finite number from 0 on"),
        ("temperature", 0, "a finite number above 0"),
        ("temperature", float("inf"), "a finite number above 0"),
        ("gradient_accumulation_steps", 0, "a whole number from 1 on"),
        ("num_generations", 2.5, "a whole number from 1 on"),
        ("num_iterations", True, "a whole number from 1 on"),
        ("entropy_coef", [1], "a finite number"),
        ("loss_type", 3, "text"),
        ("scale_rewards", [1], "text, true or false"),
        ("reward_weights", [1, "x"], "a list of finite numbers"),
        ("reward_weights", 1, "a list of finite numbers"),
        ("chat_template_kwargs", [], "an object"),
    ],
)
def test_anything_else_is_refused_by_name(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InputError, match=f"args.json: {name} is .*, and it can only be {rule}") as caught:
        require_arguments({name: value}, "args.json")
    assert len(caught.value.message) < 200

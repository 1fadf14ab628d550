from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing import settings
from tests.rollouts.readers.lines import refused


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"actor": {"n": 2}}'), ("a.yaml", "actor:\n  n: 2\n"), ("a.toml", "[actor]\nn = 2\n")],
)
def test_three_formats_say_the_same(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert settings.flattened(settings.read_document(tmp_path / name)) == {"actor.n": 2}


@pytest.mark.parametrize("name", ["a.json", "a.yml", "a.toml"])
def test_what_is_none_of_its_format_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{[")
    with pytest.raises(ValueError, match=r"."):
        settings.read_document(tmp_path / name)


def test_references_have_the_value_that_they_name() -> None:
    config = {"a": 1, "b": "${a}", "c": "${oc.select:none.such,7}", "d": "${b}", "e": "${e}", "f": "${gone}"}
    assert settings.flattened(config) == {"a": 1, "b": 1, "c": 7, "d": 1, "e": None, "f": None}


def test_arguments_stand_bare_or_under_args(tmp_path: Path) -> None:
    path = tmp_path / "RUN.json"
    path.write_text('{"args": {"beta": 0.0, "seed": 1}, "seed": 2, "reward_func_names": ["a"]}')
    read = settings.read_trainer_settings(path)
    assert read.values == {"beta": 0.0, "seed": 1, "reward_func_names": ["a"]}
    assert read.get("missing", 3) == 3
    path.write_text('{"beta": 0.5}')
    assert settings.read_trainer_settings(path).values == {"beta": 0.5}
    assert settings.read_trainer_settings(None).origin is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not readable JSON"),
        ("{", "is not readable JSON"),
        ("[]", "is not a JSON object of arguments"),
        ('{"args": 1}', "is not a JSON object of arguments"),
    ],
)
def test_unusable_arguments_say_why(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    refused(message, settings.read_trainer_settings, path)


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
    settings.require_arguments(values, "args.json")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("beta", "x", "a finite number from 0 on"),
        ("temperature", 0, "a finite number above 0"),
        ("gradient_accumulation_steps", 0, "a whole number from 1 on"),
        ("entropy_coef", [1], "a finite number"),
        ("loss_type", 3, "text"),
        ("scale_rewards", [1], "text, true or false"),
        ("reward_weights", [1, "x"], "a list of finite numbers"),
        ("chat_template_kwargs", [], "an object"),
    ],
)
def test_anything_else_is_refused_by_name(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InputError, match=f"args.json: {name} is .*, and it can only be {rule}") as caught:
        settings.require_arguments({name: value}, "args.json")
    assert len(caught.value.message) < 200

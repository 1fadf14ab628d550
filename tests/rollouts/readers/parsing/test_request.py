from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.request import read_side_ids, read_trainer_settings


def test_arguments_stand_bare_or_under_args(tmp_path: Path) -> None:
    path = tmp_path / "RUN.json"
    path.write_text('{"args": {"beta": 0.0, "seed": 1}, "seed": 2, "reward_func_names": ["a"]}')
    found = read_trainer_settings(path)
    assert found.values == {"beta": 0.0, "seed": 1, "reward_func_names": ["a"]}
    assert found.get("missing", 3) == 3
    path.write_text('{"beta": 0.5}')
    assert read_trainer_settings(path).values == {"beta": 0.5}
    assert read_trainer_settings(None).origin is None


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
    path = tmp_path / "RUN.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_trainer_settings(path)


def test_side_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.jsonl"
    path.write_text('{"step": 1, "row": 0, "completion_ids": [3, 4]}\n{"step": 1, "row": 1, "completion_ids": []}\n')
    assert read_side_ids(path) == {(1, 0): (3, 4), (1, 1): ()}
    assert read_side_ids(None) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"There is no file .*ids\.jsonl"),
        ('{"step": 1, "row": 0}\n', r"ids\.jsonl:1 does not hold step, row and completion_ids"),
        ('{"step": 1, "row": 0, "completion_ids": ["a"]}\n', r"ids\.jsonl:1 does not hold"),
        ('{"step": null, "row": 0, "completion_ids": [1]}\n', r"ids\.jsonl:1 does not hold"),
        ("oops\n", r"Rows that cannot be used: 1; first .*ids\.jsonl:1: the line is not JSON"),
    ],
)
def test_unusable_side_ids_say_why(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "ids.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_side_ids(path)

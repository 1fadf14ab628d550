"""Numeric answers out of free text, also hostile text."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.training.tasks import answers
from gradscope.training.tasks.answers import extract_answer, grade_final_answer, parse_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("12 + 3 = 15\n#### 15", "15"),
        ("#### 15\nHuman: next #### 16", "16"),
        ("#### $1,234.50", "$1,234.50"),
        (r"so \boxed{-3} or 7", "-3"),
        (r"\boxed{1} and \boxed{2}", "2"),
        ("from 1,000 to 25,000.", "25,000"),
        ("it costs $0.75", "0.75"),
        ("between 3-4", "4"),
        ("####", None),
        ("the change is -4", "-4"),
        ("none at all", None),
        ("", None),
    ],
)
def test_extraction(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [("$1,234.50", "1234.50"), ("-$5", "-5"), ("70%", "70"), ("18.", "18"), ("+3", "3"), ("1,23", None), ("1e5", None)],
)
def test_numbers(text: str, value: str | None) -> None:
    assert parse_number(text) == (None if value is None else Decimal(value))


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("#### 72.00", "72", 1.0),
        ("#### 72 clips", "72", 0.0),
        ("the answer is 72 clips", "72", 1.0),
        ("#### Tuesday", "tuesday", 1.0),
        ("#### Tuesday or Monday", "Tuesday", 0.0),
        ("seventy-two", "72", 0.0),
        ("#### nan", "nan", 1.0),
        ("#### 1" + "0" * 40, "1" + "0" * 40, 1.0),
    ],
)
def test_grades(completion: str, answer: str, reward: float) -> None:
    assert grade_final_answer(completion, answer) == reward


def test_every_gsm8k_reference_solution_grades_as_right(shared_data: Path) -> None:
    rows = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()]
    answers = [extract_answer(row["answer"]) for row in rows]
    assert len(rows) == 1319
    assert all(answer is not None and parse_number(answer) is not None for answer in answers)
    assert all(
        grade_final_answer(row["answer"], answer or "") == 1.0 for row, answer in zip(rows, answers, strict=True)
    )


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("0123456789,.#{}\\boxed$-% \n"), max_size=200))
def test_nothing_raises(text: str) -> None:
    assert grade_final_answer(text, "7") in (0.0, 1.0)


@pytest.mark.parametrize("text", ["1," * 200_000, "9" * 500_000, r"\boxed{" * 100_000, "#" * 500_000, "1.1" * 200_000])
def test_of_long_hostile_text_the_end_alone_is_searched(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Spy:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def findall(self, searched: str) -> list[str]:
            lengths.append(len(searched))
            return self.pattern.findall(searched)

    for name in ("_TOKEN", "_BOXED"):
        monkeypatch.setattr(answers, name, Spy(getattr(answers, name)))
    assert grade_final_answer(text, "72") == 0.0
    assert set(lengths) <= {20_000}

r"""Grading by math-verify, an extra: by itself where it is installed, and by a stand-in with its names everywhere.

The stand-in knows ``\frac{a}{b}``, decimals and whole numbers, and takes for ever over a tower of powers.
"""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Sequence
from fractions import Fraction
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.rollouts.store import read_steps
from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks.load import load_task
from gradscope.training.tasks.math_answers import grade_expression, math_grader
from gradscope.training.train import train

_EXPRESSION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}|(\d+(?:\.\d+)?)|(\^\{)")


class _Timeout(BaseException):
    pass


def _parse(text: str, *, fallback_mode: str, parsing_timeout: int) -> list[Any]:
    assert (fallback_mode, parsing_timeout) == ("no_fallback", 1)
    found = _EXPRESSION.findall(text)
    if "forever" in text:
        raise _Timeout
    if not found:
        return []
    top, bottom, number, tower = found[-1]
    return [Fraction(int(top), int(bottom)) if top else Fraction(number) if number else tower]


def _verify(gold: Sequence[Any], target: Sequence[Any], *, timeout_seconds: int) -> bool:
    assert timeout_seconds == 1
    if Fraction(999) in target:
        raise _Timeout
    return any(expected == given for expected in gold for given in target)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, errors = types.ModuleType("math_verify"), types.ModuleType("math_verify.errors")
    package.__spec__ = ModuleSpec("math_verify", None)
    vars(package).update(parse=_parse, verify=_verify, errors=errors)
    vars(errors).update(TimeoutException=_Timeout)
    monkeypatch.setitem(sys.modules, "math_verify", package)
    monkeypatch.setitem(sys.modules, "math_verify.errors", errors)


@pytest.fixture(params=["stand-in", "installed"])
def math_verify(request: pytest.FixtureRequest) -> None:
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")
    elif util.find_spec("math_verify") is None:
        pytest.skip("math-verify is not installed: pip install 'gradscope[math]'")


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        (r"so it is \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("#### 0.25", r"\frac{1}{4}", 1.0),
        ("#### 0.26", r"$\frac{1}{4}$", 0.0),
        ("48+24 = 72, and 9 more\n#### 72", "72", 1.0),
        ("#### 72\nor 73", "73", 0.0),
        ("72 clips", "72", 1.0),
    ],
)
def test_expressions_are_compared_by_value(math_verify: None, completion: str, answer: str, reward: float) -> None:
    assert math_grader()(completion, answer) == reward


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [("#### Blue", "blue", 1.0), ("#### red", "blue", 0.0), ("I do not know", "72", 0.0), ("", "72", 0.0)],
)
def test_what_is_no_expression_is_compared_plainly(
    math_verify: None, completion: str, answer: str, reward: float
) -> None:
    assert grade_expression(completion, answer) == reward


def test_what_takes_too_long_is_wrong_or_compared_plainly(stand_in: None) -> None:
    assert grade_expression("forever 72", "72") == 1.0
    assert grade_expression("999", "72") == 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an alarm may ring in a hook
@pytest.mark.parametrize("text", ["$9^{9^{9^{9}}}$", "$100000000!$", "$" + "(" * 900 + "1" + ")" * 900 + "$"])
def test_hostile_text_ends(text: str) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'gradscope[math]'")
    assert grade_expression(text, "5") == 0.0


def test_only_the_end_of_a_text_is_read(stand_in: None) -> None:
    assert grade_expression("forever" + " " * 3_000 + "72", "72") == 1.0


def test_it_is_an_extra(monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path) -> None:
    monkeypatch.setattr("gradscope.training.tasks.math_answers.util.find_spec", lambda name: None)
    config = TrainConfig(task="gsm8k", data=str(gsm8k_file), grader="math-verify", heldout_prompts=2, num_prompts=2)
    with pytest.raises(MissingDependencyError, match="math-verify needs a package that is not installed") as caught:
        load_task(config)
    assert caught.value.hint == "pip install 'gradscope[math]'"


def test_another_thread_is_refused(stand_in: None) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            math_grader()
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "those reach the main thread only" in str(caught[0])


def test_tasks_that_are_no_files_grade_themselves() -> None:
    with pytest.raises(UsageError, match="The task running-sums has a grader of its own"):
        TrainConfig(grader="math-verify")


@pytest.mark.slow
def test_a_run_is_graded_by_it(math_verify: None, tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    settings: dict[str, Any] = {"steps": 1, "num_prompts": 2, "group_size": 2, "heldout_prompts": 0, "device": "cpu"}
    config = TrainConfig(
        output=str(tmp_path / "run"),
        task="gsm8k",
        data=str(gsm8k_file),
        model=str(chat_model),
        grader="math-verify",
        max_completion_length=8,
        **settings,
    )
    assert {rollout.reward for group in read_steps(train(config)) for rollout in group.rollouts} <= {0.0, 1.0}

import json
import re
import sys
import threading
import types
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.rollouts.store import read_steps
from gradscope.training.config import TrainConfig
from gradscope.training.tasks import load
from gradscope.training.tasks.task import Task
from gradscope.training.train import train
from tests.rollouts.readers.lines import write_lines
from tests.training.conftest import short_config


def read(path: Path, task: str = "jsonl", **settings: Any) -> Task:
    """The task of a file, all of whose rows are trained on."""
    return load.load_task(TrainConfig(task=task, data=str(path), **{"num_prompts": 1, "heldout_prompts": 0} | settings))


def test_gsm8k_row(gsm8k_file: Path) -> None:
    task = read(gsm8k_file, "gsm8k", heldout_prompts=3)
    assert [len(task.train), len(task.heldout)] == [5, 3]
    first = task.train[1]
    assert first.prompt == f"How many apples are 1 and 2 apples?\n\n{load.INSTRUCTION}\n"
    assert (first.answer, first.prompt_id, task.chat) == ("3", "train.jsonl:2", True)
    assert task.grade("2 + 1 = 3 #### 3", "3") == 1.0
    with pytest.raises(InputError, match="has 8 rows, and 8 of them are to be held out"):
        read(gsm8k_file, "gsm8k", heldout_prompts=8)
    config = TrainConfig(task="gsm8k", data=str(gsm8k_file), heldout_prompts=2, num_prompts=7)
    assert [load.max_completion_length(settings) for settings in (TrainConfig(), config)] == [27, 256]
    assert not load.load_task(TrainConfig()).chat
    assert load.max_completion_length(TrainConfig(max_completion_length=9)) == 9
    with pytest.raises(InputError, match="There are 6 prompts to train on, and a step takes 7"):
        load.load_task(config)


def test_real_gsm8k_files(shared_data: Path) -> None:
    folder = shared_data / "gsm8k"
    held_out = {"heldout_data": str(folder / "test.jsonl"), "heldout_prompts": 50}
    task = read(folder / "train.jsonl", "gsm8k", **held_out, train_prompts=100)
    assert [len(task.train), len(task.heldout), task.train[0].answer] == [100, 50, "72"]
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    answers = [load._extract_answer(row["answer"]) or "" for row in rows]
    assert len(rows) == 1319
    assert all(load._parse_number(answer) is not None for answer in answers)
    grades = [load._grade_final_answer(row["answer"], answer) for row, answer in zip(rows, answers, strict=True)]
    assert set(grades) == {1.0}  # every reference solution


def test_jsonl_takes_numbers_as_answers_and_blank_lines(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", {"prompt": "1+1?", "answer": 2}, "", {"prompt": "colour?", "answer": " Blue "}
    )
    task = read(path)
    assert [(problem.prompt, problem.answer) for problem in task.train] == [("1+1?", "2"), ("colour?", "Blue")]
    assert task.train[1].prompt_id == "a.jsonl:3"
    # a separator of lines does not split a row, and a mark in front is no part of it
    path.write_bytes(b"\xef\xbb\xbf" + '{"prompt": "a\u2028b", "answer": "1"}\n'.encode())
    assert read(path).train[0].prompt == "a\u2028b"


def test_heldout_questions_are_never_trained_on(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "answer": "1"} for prompt in ("a", "b", "c", "a")]
    task = read(write_lines(tmp_path / "a.jsonl", *rows), heldout_prompts=1)
    assert [problem.prompt for problem in task.train] == ["b", "c"]
    assert task.notes == ("1 training rows ask a held-out question and were left out",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *((row, "is not JSON") for row in ("{", "[" * 100_000)),
        ("[1]", "is not a JSON object"),
        *((row, "has no text under 'prompt'") for row in ({"answer": "1"}, {"prompt": ["x"], "answer": "1"})),
        *(({"prompt": "x", "answer": answer}, "has no text under 'answer'") for answer in ("  ", True)),
        ({"prompt": "\ud800 x", "answer": "1"}, "has half a character under 'prompt'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"prompt": "ok", "answer": "1"}, row)
    with pytest.raises(InputError, match=rf"a\.jsonl:2 {message}"):
        read(path)


def test_gsm8k_without_final_answer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    task = read(write_lines(path, {"question": "x", "answer": "#### \n5 is wrong"}), "gsm8k")
    assert task.train[0].answer == "5 is wrong"
    for answer in ("just 5", "5 ####"):
        with pytest.raises(InputError, match=r"a\.jsonl:1 has no answer after ####"):
            read(write_lines(path, {"question": "x", "answer": answer}), "gsm8k")


def test_missing_empty_and_binary_files(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, message in (("none", "cannot be read"), ("empty", "has no rows"), ("binary", "is not text in UTF-8")):
        with pytest.raises(InputError, match=message):
            read(tmp_path / f"{name}.jsonl")


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
    assert load._extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [("$1,234.50", "1234.50"), ("-$5", "-5"), ("70%", "70"), ("18.", "18"), ("+3", "3"), ("1,23", None), ("1e5", None)],
)
def test_numbers(text: str, value: str | None) -> None:
    assert load._parse_number(text) == (None if value is None else Decimal(value))


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
    assert load._grade_final_answer(completion, answer) == reward


@given(st.text(alphabet=st.sampled_from("0123456789,.#{}\\boxed$-% \n"), max_size=200))
def test_nothing_raises(text: str) -> None:
    assert load._grade_final_answer(text, "7") in (0.0, 1.0)


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
        monkeypatch.setattr(load, name, Spy(getattr(load, name)))
    assert load._grade_final_answer(text, "72") == 0.0
    assert set(lengths) <= {20_000}


_EXPRESSION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}|(\d+(?:\.\d+)?)|(\^\{)")


class _Timeout(BaseException):
    pass


def _parse(text: str, *, fallback_mode: str, parsing_timeout: int) -> list[Any]:
    assert (fallback_mode, parsing_timeout) == ("no_fallback", 1)
    result = _EXPRESSION.findall(text)
    if "forever" in text:
        raise _Timeout
    if not result:
        return []
    top, bottom, number, tower = result[-1]
    return [Fraction(int(top), int(bottom)) if top else Fraction(number) if number else tower]


def _verify(gold: Sequence[Any], target: Sequence[Any], *, timeout_seconds: int) -> bool:
    assert timeout_seconds == 1
    if Fraction(999) in target:
        raise _Timeout
    return any(expected == inputs for expected in gold for inputs in target)


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
        *((text, "blue", reward) for text, reward in (("#### Blue", 1.0), ("#### red", 0.0))),
        *((text, "72", 0.0) for text in ("I do not know", "")),
    ],
)
def test_expressions_are_compared_by_value(math_verify: None, completion: str, answer: str, reward: float) -> None:
    assert load._math_grader()(completion, answer) == reward


def test_an_expression_that_takes_too_long_is_wrong_or_compared_plainly(stand_in: None) -> None:
    assert load._grade_expression("forever 72", "72") == 1.0
    assert load._grade_expression("forever" + " " * 3_000 + "72", "72") == 1.0  # the end of a text alone is read
    assert load._grade_expression("999", "72") == 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an alarm may ring in a hook
@pytest.mark.parametrize("text", ["$9^{9^{9^{9}}}$", "$100000000!$", "$" + "(" * 900 + "1" + ")" * 900 + "$"])
def test_hostile_text_ends(text: str) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'gradscope[math]'")
    assert load._grade_expression(text, "5") == 0.0


def test_it_is_an_extra(monkeypatch: pytest.MonkeyPatch, gsm8k_file: Path) -> None:
    monkeypatch.setattr("gradscope.training.tasks.load.util.find_spec", lambda name: None)
    config = TrainConfig(task="gsm8k", data=str(gsm8k_file), grader="math-verify", heldout_prompts=2, num_prompts=2)
    with pytest.raises(MissingDependencyError, match="math-verify needs a package that is not installed") as caught:
        load.load_task(config)
    assert caught.value.hint == "pip install 'gradscope[math]'"
    with pytest.raises(UsageError, match="The task running-sums has a grader of its own"):
        TrainConfig(grader="math-verify")


def test_another_thread_is_refused(stand_in: None) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            load._math_grader()
        except UsageError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "those reach the main thread only" in str(caught[0])


@pytest.mark.slow
def test_a_run_is_graded_by_it(math_verify: None, tmp_path: Path, gsm8k_file: Path, chat_model: Path) -> None:
    sizes = {"steps": 1, "num_prompts": 2, "group_size": 2, "max_completion_length": 8, "train_prompts": None}
    task = {"task": "gsm8k", "data": str(gsm8k_file), "grader": "math-verify", "model": str(chat_model)}
    config = short_config(tmp_path / "run", **sizes, **task)
    assert {rollout.reward for group in read_steps(train(config)) for rollout in group.rollouts} <= {0.0, 1.0}

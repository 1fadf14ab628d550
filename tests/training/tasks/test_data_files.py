"""Tasks from files: GSM8K's own form, prompts and answers, rows that cannot be trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.training.setup.config import TrainConfig
from gradscope.training.tasks.data_files import INSTRUCTION, gsm8k_task, jsonl_task
from gradscope.training.tasks.load import load_task


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_gsm8k_row(gsm8k_file: Path) -> None:
    task = gsm8k_task(gsm8k_file, None, heldout_prompts=3, train_prompts=None)
    assert [len(task.train), len(task.heldout)] == [5, 3]
    assert task.train[1].prompt == f"How many apples are 1 and 2 apples?\n\n{INSTRUCTION}\n"
    assert task.train[1].answer == "3"
    assert task.train[1].prompt_id == "train.jsonl:2"
    assert task.chat
    assert task.grade("2 + 1 = 3 #### 3", "3") == 1.0


def test_real_gsm8k_files(shared_data: Path) -> None:
    folder = shared_data / "gsm8k"
    task = gsm8k_task(folder / "train.jsonl", folder / "test.jsonl", heldout_prompts=50, train_prompts=100)
    assert [len(task.train), len(task.heldout)] == [100, 50]
    assert task.train[0].answer == "72"


def test_jsonl_takes_numbers_as_answers_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "1+1?", "answer": 2}, "", {"prompt": "colour?", "answer": " Blue "}])
    task = jsonl_task(path, None, heldout_prompts=0, train_prompts=None)
    assert [(problem.prompt, problem.answer) for problem in task.train] == [("1+1?", "2"), ("colour?", "Blue")]
    assert task.train[1].prompt_id == "a.jsonl:3"


def test_line_separators_inside_a_prompt_do_not_split_the_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\u2028b", "answer": "1"}\n', encoding="utf-8")
    assert jsonl_task(path, None, heldout_prompts=0, train_prompts=None).train[0].prompt == "a\u2028b"


def test_heldout_questions_are_never_trained_on(tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "answer": "1"} for prompt in ("a", "b", "c", "a")]
    task = jsonl_task(write(tmp_path / "a.jsonl", rows), None, heldout_prompts=1, train_prompts=None)
    assert [problem.prompt for problem in task.train] == ["b", "c"]
    assert task.notes == ("1 training rows ask a held-out question and were left out",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"a\.jsonl:2 is not JSON"),
        ("[" * 100_000, r"a\.jsonl:2 is not JSON"),
        ("[1]", r"a\.jsonl:2 is not a JSON object"),
        ({"answer": "1"}, r"a\.jsonl:2 has no text under 'prompt'"),
        ({"prompt": "x", "answer": "  "}, r"a\.jsonl:2 has no text under 'answer'"),
        ({"prompt": "x", "answer": True}, r"a\.jsonl:2 has no text under 'answer'"),
        ({"prompt": ["x"], "answer": "1"}, r"a\.jsonl:2 has no text under 'prompt'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "ok", "answer": "1"}, row])
    with pytest.raises(InputError, match=message):
        jsonl_task(path, None, heldout_prompts=0, train_prompts=None)


@pytest.mark.parametrize("answer", ["just 5", "5 ####", "#### \n5 is wrong"])
def test_gsm8k_without_final_answer(tmp_path: Path, answer: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "x", "answer": answer}])
    if answer.startswith("####"):
        assert gsm8k_task(path, None, heldout_prompts=0, train_prompts=None).train[0].answer == "5 is wrong"
    else:
        with pytest.raises(InputError, match=r"a\.jsonl:1 has no answer after ####"):
            gsm8k_task(path, None, heldout_prompts=0, train_prompts=None)


def test_missing_empty_and_binary_files(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, message in (("none", "cannot be read"), ("empty", "has no rows"), ("binary", "is not text in UTF-8")):
        with pytest.raises(InputError, match=message):
            jsonl_task(tmp_path / f"{name}.jsonl", None, heldout_prompts=0, train_prompts=None)


def test_a_mark_in_front_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": "x", "answer": "1"}).encode())
    assert jsonl_task(path, None, heldout_prompts=0, train_prompts=None).train[0].prompt == "x"


def test_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text(json.dumps({"prompt": "\ud800 x", "answer": "1"}))
    with pytest.raises(InputError, match=r"half\.jsonl:1 has half a character under 'prompt'"):
        jsonl_task(path, None, heldout_prompts=0, train_prompts=None)


def test_too_few_rows(gsm8k_file: Path) -> None:
    with pytest.raises(InputError, match="has 8 rows, and 8 of them are to be held out"):
        gsm8k_task(gsm8k_file, None, heldout_prompts=8, train_prompts=None)
    config = TrainConfig(task="gsm8k", data=str(gsm8k_file), heldout_prompts=2, num_prompts=7)
    with pytest.raises(InputError, match="There are 6 prompts to train on, and a step takes 7"):
        load_task(config)

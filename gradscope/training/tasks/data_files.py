"""Tasks that read their prompts from a file: GSM8K's own, and any JSONL of prompts and answers.

A row that cannot be trained on is an error with file and line, never skipped: what a run was trained on should be what
the file says. Held-out prompts never occur in training, also where a file lists the same question twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import read_whole
from gradscope.outside.plain_json import parse_json
from gradscope.training.tasks.answers import extract_answer, grade_final_answer
from gradscope.training.tasks.task import AnswerMark, Grader, Problem, Task

INSTRUCTION = "Reason step by step and end with the final answer after ####."
ANSWER_MARK = AnswerMark(text="####", is_last=True, gap=" ")

Row = Callable[[dict[str, Any], str], tuple[str, str]]


def gsm8k_task(
    data: Path,
    heldout_data: Path | None,
    *,
    heldout_prompts: int,
    train_prompts: int | None,
    grader: Grader = grade_final_answer,
) -> Task:
    """GSM8K: ``question`` and a worked ``answer`` whose number stands after ``####``.

    Args:
        data: ``train.jsonl`` of openai/grade-school-math, or a file of the same form.
        heldout_data: ``test.jsonl``; without it the last rows of ``data`` are held out.
        heldout_prompts: How many prompts are held out.
        train_prompts: How many are trained on; None for all.
        grader: How a completion's final answer is compared.

    Returns:
        The task; the prompt is the question, a blank line and a sentence that asks for the form of the answer.
    """
    return _task("gsm8k", _gsm8k_row, data, heldout_data, heldout_prompts, train_prompts, grader)


def jsonl_task(
    data: Path,
    heldout_data: Path | None,
    *,
    heldout_prompts: int,
    train_prompts: int | None,
    grader: Grader = grade_final_answer,
) -> Task:
    """Any task with one right answer a prompt: rows with ``prompt`` and ``answer``, put to the model as they are.

    Args:
        data: A JSONL file.
        heldout_data: Another one; without it the last rows of ``data`` are held out.
        heldout_prompts: How many prompts are held out.
        train_prompts: How many are trained on; None for all.
        grader: How a completion's final answer is compared.

    Returns:
        The task.
    """
    return _task("jsonl", _plain_row, data, heldout_data, heldout_prompts, train_prompts, grader)


def _task(
    name: str,
    row: Row,
    data: Path,
    heldout_data: Path | None,
    heldout_prompts: int,
    train_prompts: int | None,
    grader: Grader,
) -> Task:
    problems = _read(data, row)
    if heldout_data is not None:
        heldout = _read(heldout_data, row)[:heldout_prompts]
        rest = problems
    else:
        if len(problems) <= heldout_prompts:
            raise InputError(
                f"{data} has {len(problems)} rows, and {heldout_prompts} of them are to be held out.",
                hint="Ask for fewer held-out prompts (heldout_prompts), or name a file for them (heldout_data).",
            )
        cut = len(problems) - heldout_prompts
        rest, heldout = problems[:cut], problems[cut:]
    held = {problem.prompt for problem in heldout}
    train = tuple(problem for problem in rest if problem.prompt not in held)
    notes = (f"{len(rest) - len(train)} training rows ask a held-out question and were left out",)
    return Task(
        name=name,
        train=train[:train_prompts],
        heldout=heldout,
        graders={"final_answer": grader},
        answer_mark=ANSWER_MARK,
        chat=True,
        notes=notes if len(train) < len(rest) else (),
    )


def _read(path: Path, row: Row) -> tuple[Problem, ...]:
    """All rows of a file; blank lines are allowed."""
    try:
        lines = read_whole(path).decode("utf-8-sig").split("\n")  # some editors put a mark in front
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", hint="Check the path given as data.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8.", hint="Expected: one JSON object a line.") from error
    problems = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path}:{number}"
            prompt, answer = row(_parse(line, where), where)
            problems.append(Problem(prompt_id=f"{path.name}:{number}", prompt=prompt, answer=answer))
    if not problems:
        raise InputError(f"{path} has no rows.", hint="Expected: one JSON object a line.")
    return tuple(problems)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        document = parse_json(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}.", hint="Expected: one JSON object a line.") from error
    if not isinstance(document, dict):
        raise InputError(f"{where} is not a JSON object.", hint="Expected: one JSON object a line.")
    return document


def _text(document: dict[str, Any], key: str, where: str) -> str:
    value = document.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where} has no text under {key!r}.", hint=f"Give each row its {key}, or remove the row.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where} has half a character under {key!r}, a surrogate alone.", hint="Mend the row.")
    return value


def _plain_row(document: dict[str, Any], where: str) -> tuple[str, str]:
    return _text(document, "prompt", where), _text(document, "answer", where).strip()


def _gsm8k_row(document: dict[str, Any], where: str) -> tuple[str, str]:
    solution = _text(document, "answer", where)
    answer = extract_answer(solution) if "####" in solution else None
    if not answer:
        raise InputError(
            f"{where} has no answer after ####.", hint="Use --task jsonl for a file that holds bare answers."
        )
    return f"{_text(document, 'question', where)}\n\n{INSTRUCTION}\n", answer

"""From a configuration to its task."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from importlib import util
from pathlib import Path
from typing import Any

from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.outside.limits import read_limited
from gradscope.outside.plain_json import parse_json
from gradscope.training.config import TrainConfig
from gradscope.training.tasks import running_sums
from gradscope.training.tasks.task import AnswerMark, Grader, Problem, Task

# Taking the final answer out of a model's text, plainly: no evaluation, no parsing of formulas, bounded work.
#
# The answer is searched in three places, the first that exists counts: after the last ``####``, inside the last
# ``\boxed{...}``, and the last number of the text. Numbers are compared by value: ``$1,234.50`` equals ``1234.5``.
_MAX_TEXT = 20_000  # only the end of a longer text is looked at: a final answer is at the end
_TOKEN = re.compile(r"(?:(?<![\d)])[-+])?\d(?:[\d,]*\d)?(?:\.\d+)?")
"""Anything that looks like a number, in one pass; a minus between two numbers is not a sign."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,30})(?:\.\d{1,30})?")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]{0,200})\}")


def _extract_answer(text: str) -> str | None:
    r"""The text of the final answer in a completion or a reference solution, or None where there is none.

    >>> _extract_answer("48/2 = 24, so 48+24 = <<48+24=72>>72 clips. #### 72")
    '72'
    >>> _extract_answer("The answer is \\boxed{1,080}.")
    '1,080'
    >>> _extract_answer("She has 3 apples and 4 pears, 7 in all.")
    '7'
    >>> _extract_answer("I do not know.") is None
    True
    """
    text = text[-_MAX_TEXT:]
    _, mark, after = text.rpartition("####")
    if mark:
        lines = after.strip().splitlines()
        return lines[0].strip() if lines else None
    boxed = _BOXED.findall(text)
    if boxed:
        return str(boxed[-1]).strip()
    numbers = _TOKEN.findall(text)
    return str(numbers[-1]) if numbers else None


def _parse_number(text: str) -> Decimal | None:
    """The value of one plain number of at most 30 digits, without currency, percent, commas and period; else None."""
    stripped = text.strip().removesuffix(".").strip().strip("$€£%").strip()
    sign, digits = ("-", stripped[1:].lstrip("$€£ ")) if stripped.startswith("-") else ("", stripped)
    return Decimal(sign + digits.replace(",", "")) if _NUMBER.fullmatch(digits) else None


def _grade_final_answer(completion: str, answer: str) -> float:
    """1.0 where a final answer is right, numbers by value, text without regard to case and spacing; else 0.0."""
    extracted = _extract_answer(completion)
    if extracted is None:
        return 0.0
    expected = _parse_number(answer)
    if expected is not None:
        return float(_parse_number(extracted) == expected)
    return float(" ".join(extracted.split()).casefold() == " ".join(answer.split()).casefold())


# Tasks that read their prompts from a file: GSM8K's own, and any JSONL of prompts and answers.
#
# A row that cannot be trained on is an error with file and line, never skipped: a run should be trained on its entire
# file. Held-out prompts never occur in training, also where a file lists the same question twice.
INSTRUCTION = "Reason step by step and end with the final answer after ####."
_MARK = AnswerMark(text="####", is_last=True, gap=" ")

Row = Callable[[dict[str, Any], str], tuple[str, str]]


def _from_files(config: TrainConfig, data: Path) -> Task:
    """``gsm8k`` or ``jsonl``: one right answer a prompt, from a file of that form."""
    row, num_heldout = _ROWS[config.task], config.heldout_prompts
    problems = _read(data, row)
    if config.heldout_data is not None:
        heldout = _read(Path(config.heldout_data), row)[:num_heldout]
        rest = problems
    else:
        if len(problems) <= num_heldout:
            raise InputError(
                f"{data} has {len(problems)} rows, and {num_heldout} of them are to be held out.",
                hint="Ask for fewer held-out prompts (heldout_prompts), or name a file for them (heldout_data).",
            )
        cut = len(problems) - num_heldout
        rest, heldout = problems[:cut], problems[cut:]
    held = {problem.prompt for problem in heldout}
    train = tuple(problem for problem in rest if problem.prompt not in held)
    notes = (f"{len(rest) - len(train)} training rows ask a held-out question and were left out",)
    return Task(
        train=train[: config.train_prompts],
        heldout=heldout,
        graders={"final_answer": _math_grader() if config.grader == "math-verify" else _grade_final_answer},
        answer_mark=_MARK,
        chat=True,
        notes=notes if len(train) < len(rest) else (),
    )


def _read(path: Path, row: Row) -> tuple[Problem, ...]:
    """All rows of a file; blank lines are allowed."""
    try:
        lines = read_limited(path).decode("utf-8-sig").split("\n")  # some editors put a mark in front
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.", hint="Check the path given as data.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8.", hint="Expected: one JSON object a line.") from error
    problems = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            source = f"{path}:{number}"
            try:
                document = parse_json(line)
            except ValueError as error:
                raise InputError(f"{source} is not JSON: {error}.", hint="Expected: one JSON object a line.") from error
            if not isinstance(document, dict):
                raise InputError(f"{source} is not a JSON object.", hint="Expected: one JSON object a line.")
            prompt, answer = row(document, source)
            problems.append(Problem(prompt_id=f"{path.name}:{number}", prompt=prompt, answer=answer))
    if not problems:
        raise InputError(f"{path} has no rows.", hint="Expected: one JSON object a line.")
    return tuple(problems)


def _text(document: dict[str, Any], key: str, source: str) -> str:
    value = document.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{source} has no text under {key!r}.", hint=f"Give each row its {key}, or remove the row.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{source} has half a character under {key!r}, a surrogate alone.", hint="Mend the row.")
    return value


def _gsm8k_row(document: dict[str, Any], source: str) -> tuple[str, str]:
    """GSM8K: ``question``, with a sentence that asks for the form of the answer, and a worked ``answer``."""
    solution = _text(document, "answer", source)
    answer = _extract_answer(solution) if "####" in solution else None
    if not answer:
        raise InputError(
            f"{source} has no answer after ####.", hint="Use --task jsonl for a file that holds bare answers."
        )
    return f"{_text(document, 'question', source)}\n\n{INSTRUCTION}\n", answer


_ROWS: dict[str, Row] = {
    "gsm8k": _gsm8k_row,
    "jsonl": lambda row, source: (_text(row, "prompt", source), _text(row, "answer", source).strip()),
}


# Grading by math-verify: ``\frac{1}{2}`` equals ``0.5``, ``(x+1)^2`` equals ``x^2+2x+1``.
#
# It reads expressions with sympy, which a hostile completion could keep busy for ever. So only the end of a text is
# looked at, and each reading and each comparison is stopped after a second, by a signal: that works in the main thread
# alone. Answers that it cannot read are compared as texts.
_MAX_MATH_TEXT = 2_000  # characters from the end of a completion: its final answer is there
_SECONDS = 1  # signals have a resolution of one second


def _math_grader() -> Grader:
    """The grader, once its library is installed."""
    if util.find_spec("math_verify") is None:
        raise MissingDependencyError(
            "The grader math-verify needs a package that is not installed.", hint="pip install 'gradscope[math]'"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "The grader math-verify stops long computations by a signal, and those reach the main thread only.",
            hint="Call gradscope from the main thread, or use the grader plain.",
        )
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it repeats a text that took too long in full
    return _grade_expression


def _grade_expression(completion: str, answer: str) -> float:
    """1.0 where a completion's final answer, after the last ``####`` if there is one, is mathematically right."""
    end = completion[-_MAX_MATH_TEXT:]
    answered = _parse_math((_extract_answer(end) or "") if "####" in end else end)
    expected = _parse_math(answer if "$" in answer else f"${answer}$") or _parse_math(answer)
    if not answered or not expected:
        return _grade_final_answer(completion, answer)
    from math_verify import verify
    from math_verify.errors import TimeoutException

    try:
        return float(verify(expected, answered, timeout_seconds=_SECONDS))
    except TimeoutException:  # not an Exception; it may come between two of its own handlers
        return 0.0


def _parse_math(text: str) -> list[object]:
    """The expressions that math-verify finds in a text, without words that it could not read."""
    from math_verify import parse
    from math_verify.errors import TimeoutException

    try:
        parsed = parse(text[-_MAX_MATH_TEXT:], fallback_mode="no_fallback", parsing_timeout=_SECONDS)
    except TimeoutException:
        return []
    return [expression for expression in parsed if not isinstance(expression, str)]


_STEPWISE = ("running-sums", "bimodal", "steps")
_MARKED_ANSWERS = ("running-sums", "bimodal", "conflict")
DEFAULT_TRAIN_PROMPTS = 256
_DEFAULT_COMPLETION_LENGTH = 256
_MAKERS: dict[str, Callable[..., tuple[Problem, ...]]] = {
    "running-sums": running_sums.make_problems,
    "conflict": running_sums.conflict_problems,
    "starved": running_sums.starved_problems,
    "bimodal": running_sums.bimodal_problems,
    "steps": running_sums.steps_problems,
}
_GRADERS: dict[str, Grader] = {"starved": running_sums.grade_exact, "steps": running_sums.grade_share}
"""Where it is not the answer alone that counts."""


def load_task(config: TrainConfig) -> Task:
    """The task with its prompts.

    Raises:
        InputError: There are fewer training prompts than one step needs.
    """
    if config.data is not None:
        task = _from_files(config, Path(config.data))
    else:
        make, grader = _MAKERS[config.task], _GRADERS.get(config.task, running_sums.grade_answer)
        task = Task(
            train=make(config.train_prompts or DEFAULT_TRAIN_PROMPTS, seed=config.seed, heldout=False),
            heldout=make(config.heldout_prompts, seed=config.seed, heldout=True),
            graders={"steps" if config.task == "steps" else "answer": grader},
            step_grader=running_sums.grade_steps if config.task in _STEPWISE else None,
            answer_mark=running_sums.ANSWER_MARK if config.task in _MARKED_ANSWERS else None,
            is_coherent=running_sums.is_coherent if config.task in ("running-sums", "bimodal") else None,
        )
    if len(task.train) < config.num_prompts:
        raise InputError(
            f"There are {len(task.train)} prompts to train on, and a step takes {config.num_prompts}.",
            hint="Lower --num-prompts or --heldout-prompts, or raise --train-prompts.",
        )
    return task


def max_completion_length(config: TrainConfig) -> int:
    """Most tokens of a completion: the configuration's, else as many as the task needs."""
    if config.max_completion_length is not None:
        return config.max_completion_length
    return running_sums.MAX_COMPLETION_LENGTH if config.data is None else _DEFAULT_COMPLETION_LENGTH

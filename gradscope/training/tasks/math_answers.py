r"""Grading by math-verify: ``\frac{1}{2}`` equals ``0.5``, ``(x+1)^2`` equals ``x^2+2x+1``.

It reads expressions with sympy, which a hostile completion could keep busy for ever. So only the end of a text is
looked at, and each reading and each comparison is stopped after a second, by a signal: that works in the main thread
alone. What it cannot read on either side is compared plainly.
"""

from __future__ import annotations

import logging
import threading
from importlib import util

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.training.tasks.answers import extract_answer, grade_final_answer
from gradscope.training.tasks.task import Grader

_MAX_TEXT = 2_000
"""Characters from the end of a completion: its final answer is there."""
_SECONDS = 1
"""Signals come after whole seconds."""


def math_grader() -> Grader:
    """The grader, once what it needs is there.

    Returns:
        Called with (completion, answer); 1.0 or 0.0.

    Raises:
        MissingDependencyError: math-verify is not installed.
        UsageError: This is not the main thread.
    """
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
    return grade_expression


def grade_expression(completion: str, answer: str) -> float:
    """Whether a completion's final answer is mathematically the right one.

    Args:
        completion: The completion's text; what follows the last ``####``, where there is one, counts alone.
        answer: The right answer, with or without dollar signs around it.

    Returns:
        1.0 or 0.0. Where math-verify reads no expression on one side, the plain comparison decides.
    """
    end = completion[-_MAX_TEXT:]
    answered = _read((extract_answer(end) or "") if "####" in end else end)
    expected = _read(answer if "$" in answer else f"${answer}$") or _read(answer)
    if not answered or not expected:
        return grade_final_answer(completion, answer)
    from math_verify import verify
    from math_verify.errors import TimeoutException

    try:
        return float(verify(expected, answered, timeout_seconds=_SECONDS))
    except TimeoutException:  # not an Exception; it may come between two of its own handlers
        return 0.0


def _read(text: str) -> list[object]:
    """What math-verify finds in a text: expressions alone, not the words that it could not read."""
    from math_verify import parse
    from math_verify.errors import TimeoutException

    try:
        parsed = parse(text[-_MAX_TEXT:], fallback_mode="no_fallback", parsing_timeout=_SECONDS)
    except TimeoutException:
        return []
    return [expression for expression in parsed if not isinstance(expression, str)]

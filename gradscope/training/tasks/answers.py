r"""Taking the final answer out of a model's text, plainly: no evaluation, no parsing of formulas, bounded work.

The answer is looked for in three places, the first that exists counts: after the last ``####``, inside the last
``\boxed{...}``, and the last number of the text. Numbers are compared by value: ``$1,234.50`` equals ``1234.5``.
"""

from __future__ import annotations

import re
from decimal import Decimal

_MAX_TEXT = 20_000
"""Only the end of a longer text is looked at: a final answer is at the end."""
_TOKEN = re.compile(r"(?:(?<![\d)])[-+])?\d(?:[\d,]*\d)?(?:\.\d+)?")
"""What looks like a number, in one pass; a minus between two numbers is not a sign."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3}){1,9}|\d{1,30})(?:\.\d{1,30})?")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]{0,200})\}")


def extract_answer(text: str) -> str | None:
    r"""The final answer as it stands in a text.

    Args:
        text: A completion, or a reference solution.

    Returns:
        The text of the answer without surrounding space, or None where there is none.

    Example:
        >>> extract_answer("48/2 = 24, so 48+24 = <<48+24=72>>72 clips. #### 72")
        '72'
        >>> extract_answer("The answer is \\boxed{1,080}.")
        '1,080'
        >>> extract_answer("She has 3 apples and 4 pears, 7 in all.")
        '7'
        >>> extract_answer("I do not know.") is None
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


def parse_number(text: str) -> Decimal | None:
    """The value of a text that is one number, with or without currency, percent sign, commas or final period.

    Returns:
        Its value, or None where the text is not one plain number of at most 30 digits.

    Example:
        >>> parse_number("$1,234.50.")
        Decimal('1234.50')
        >>> parse_number("12 apples") is None
        True
    """
    bare = text.strip().removesuffix(".").strip().strip("$€£%").strip()
    sign, digits = ("-", bare[1:].lstrip("$€£ ")) if bare.startswith("-") else ("", bare)
    return Decimal(sign + digits.replace(",", "")) if _NUMBER.fullmatch(digits) else None


def grade_final_answer(completion: str, answer: str) -> float:
    """Whether a completion's final answer is the right one.

    Args:
        completion: The completion's text.
        answer: The right answer: a number is compared by value, other text without regard to case and spacing.

    Returns:
        1.0 or 0.0; a completion without an answer has 0.0.

    Example:
        >>> grade_final_answer("so it is 1,080.0", "1080"), grade_final_answer("#### Blue", "blue")
        (1.0, 1.0)
        >>> grade_final_answer("1080 or 1081", "1080")
        0.0
    """
    extracted = extract_answer(completion)
    if extracted is None:
        return 0.0
    expected = parse_number(answer)
    if expected is not None:
        return float(parse_number(extracted) == expected)
    return float(" ".join(extracted.split()).casefold() == " ".join(answer.split()).casefold())

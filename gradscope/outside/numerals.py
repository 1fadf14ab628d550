"""Numbers in text: one grammar, for options, cells of tables and values of configurations alike.

ASCII digits with at most one point and one exponent, and ``nan`` or ``inf``. Python's own ``float`` and ``int`` also
take ``1_0`` and the digits of other scripts, which in a log are damage and on a command line slips.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+(?:\.0*)?")
_BLANKS = " \t\r\n"
_SHOWN = 40
MAX_DIGITS = 300
"""Of one number: below where Python refuses to convert it, and all that a float can hold without its exponent."""


def number_from(text: str) -> float:
    """The number that a text is; blanks around it do not count.

    Returns:
        The number, NaN and infinity included; infinite where it is beyond all floats.

    Raises:
        ValueError: It is none, or longer than ``MAX_DIGITS``.

    >>> number_from("-1.5e3"), number_from(" .5 "), number_from("inf")
    (-1500.0, 0.5, inf)
    """
    return float(_checked(text, _NUMBER, "a number"))


def integer_from(text: str) -> int:
    """The integer in a text, in digits; ``3.0`` is one, and blanks around it do not count.

    Raises:
        ValueError: It is none, or longer than ``MAX_DIGITS``.

    >>> integer_from("10"), integer_from("-3.0")
    (10, -3)
    """
    return int(_checked(text, _INTEGER, "a whole number").partition(".")[0])


def _checked(text: str, grammar: re.Pattern[str], kind: str) -> str:
    word = text.strip(_BLANKS)
    if len(word) > MAX_DIGITS:
        raise ValueError(f"{len(word)} letters are more than the {MAX_DIGITS} of a number")
    if grammar.fullmatch(word) is None:
        raise ValueError(f"{text[:_SHOWN]!r} is not {kind}")
    return word

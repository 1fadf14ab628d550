"""The numbers that a run is known by, as the page and the terminal print them."""

from __future__ import annotations

from gradscope.estimate import Estimate
from gradscope.render.words.numbers import UNDEFINED, format_number
from gradscope.results.report import KeyNumber, NumberStyle
from gradscope.say import percent


def key_number_words(number: KeyNumber) -> list[tuple[str, str]]:
    """A number and the one that belongs to it, each with its interval; a share in per cent, as a person says it.

    Returns:
        One or two of ``("49.1 %", "[44.8 %, 53.5 %]")``; a dash for what is not known, and nothing where there is no
        interval.
    """
    return [_words(one, number.style) for one in (number.value, number.then) if one is not None]


def _words(value: Estimate, style: NumberStyle) -> tuple[str, str]:
    text = UNDEFINED if value.value is None else _number(value.value, style)
    ends = [_number(end, style) for end in value.interval or ()]
    return text, f"[{', '.join(ends)}]" if ends else ""


def _number(value: float, style: NumberStyle) -> str:
    return percent(value) if style == "share" else format_number(value, style)

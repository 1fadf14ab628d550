"""How a number reads: `0.412 [0.33, 0.49]`, and a dash with a footnote where there is none."""

from __future__ import annotations

import math
from typing import Literal

from gradscope.estimate import Estimate
from gradscope.results.report import KeyNumber, NumberStyle
from gradscope.say import non_finite_word, percent

Style = Literal["share", "gap", "rank", "norm", "count"]
"""``share`` in [0, 1]; ``gap`` a signed difference of shares; ``rank`` around 1 to 100; ``norm`` any magnitude;
``count`` a whole number."""

UNDEFINED = "—"
FACTS = "A number of one step or one matrix is a fact about it, and has no interval"
"""What a table says of its numbers that nothing was sampled for."""
IN_THE_FILES = "Intervals that have no room here are in the JSON and the CSV"
"""What a table says that has no room for all intervals."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Footnotes:
    """The reasons why numbers of one table are undefined, each said once."""

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._remarks: list[str] = []

    def mark(self, reason: str) -> str:
        """The dash that stands for an undefined number, with the raised number of the footnote that says why."""
        return f"{UNDEFINED}{self.number(reason)}"

    def number(self, reason: str) -> str:
        """The raised number of a footnote, to stand behind a word: ``cannot²``."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return _raised(self._reasons.index(reason) + 1)

    def remark(self, sentence: str) -> None:
        """Adds what no single number points to, such as the rows that a table leaves out; once."""
        if sentence not in self._remarks:
            self._remarks.append(sentence)

    def lines(self) -> tuple[str, ...]:
        """The footnotes, a line per reason, numbered as the marks are; then the remarks."""
        reasons = (f"{_raised(number)} {reason}" for number, reason in enumerate(self._reasons, start=1))
        return (*reasons, *self._remarks)


def _raised(number: int) -> str:
    return str(number).translate(_RAISED)


def format_number(value: float, style: Style) -> str:
    """A number with as many digits as its kind bears.

    Returns:
        Three decimals for shares, and an exponent where these would read as zero; two for ranks; a word where it is not
        finite.

    Example:
        >>> format_number(0.4125, "share"), format_number(1.8e-5, "share"), format_number(-0.25, "gap")
        ('0.412', '1.8e-05', '-0.250')
    """
    if not math.isfinite(value):
        return non_finite_word(value)
    if style == "count":
        return f"{value:,.0f}"
    if style == "norm":
        return f"{value:.4g}"
    sign = "+" if style == "gap" else ""
    if style == "rank":
        return f"{value:{sign}.2f}"
    if 0 < abs(value) < 0.0005:
        return f"{value:{sign}.1e}"
    return f"{value:{sign}.3f}"


def format_estimate(
    estimate: Estimate, notes: Footnotes, style: Style, *, interval: bool = True, alone: str = ""
) -> str:
    """``0.412 [0.33, 0.49]``, with the interval if asked, or the dash that points to the footnote.

    Args:
        estimate: The number.
        notes: Takes the reasons.
        style: How it reads.
        interval: Whether its interval is shown.
        alone: Why it has none where it has none; empty where that is said elsewhere.

    Returns:
        One line.
    """
    if estimate.value is None:
        return notes.mark(estimate.undefined or "undefined")
    text = format_number(estimate.value, style)
    if not interval or estimate.interval is None:
        return f"{text}{notes.number(f'no interval: {alone}')}" if interval and alone else text
    low, high = (_end(end, estimate.interval, style) for end in estimate.interval)
    return f"{text} [{low}, {high}]"


def why_alone(num_units: int, units: str = "live groups") -> str:
    """Why the mean of some units has no interval: there is one of them, or no two differ.

    Returns:
        The reason, in a few words.

    Example:
        >>> why_alone(1), why_alone(3, "runs")
        ('one live group does not tell how they differ', 'all runs have this very value')
    """
    if num_units == 1:
        return f"one {units.removesuffix('s')} does not tell how they differ"
    return f"all {units} have this very value"


def _end(value: float, interval: tuple[float, float], style: Style) -> str:
    """One end of an interval: shares get two decimals, three where the interval is narrow."""
    if style in {"share", "gap"} and interval[1] - interval[0] >= 0.05:
        return f"{value:{'+' if style == 'gap' else ''}.2f}"
    return format_number(value, style)


def key_number_words(number: KeyNumber) -> list[tuple[str, str]]:
    """A number and the one that belongs to it, each with its interval; a share in per cent, as a person says it.

    Returns:
        One or two of ``("49.1 %", "[44.8 %, 53.5 %]")``; a dash for what is not known, and nothing where there is no
        interval.
    """
    return [_key_words(one, number.style) for one in (number.value, number.then) if one is not None]


def _key_words(value: Estimate, style: NumberStyle) -> tuple[str, str]:
    text = UNDEFINED if value.value is None else _key_number(value.value, style)
    ends = [_key_number(end, style) for end in value.interval or ()]
    return text, f"[{', '.join(ends)}]" if ends else ""


def _key_number(value: float, style: NumberStyle) -> str:
    return percent(value) if style == "share" else format_number(value, style)

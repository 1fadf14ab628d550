r"""Words, numbers and hostile text, alike for every kind of output.

A log line can hold escape sequences that recolor or retitle a terminal, bidirectional marks that reorder text,
and square brackets that rich would take for markup. Controls are written as ``\x1b``; markup is never parsed, because
cells are rich ``Text`` and not strings.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from gradscope.catalog.lookup import budget_of, metric
from gradscope.say import non_finite_word, percent

if TYPE_CHECKING:  # colors and escapes are needed at once, before any result is known
    from rich.text import Text

    from gradscope.estimate import Estimate
    from gradscope.results.compare import ComparedCell, ComparedPair, Comparison
    from gradscope.results.report import KeyNumber
    from gradscope.results.verdicts import Verdict


_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: str, *, limit: int | None = None) -> str:
    r"""A text as one line of visible characters, others as backslash escapes, with an ellipsis beyond the limit.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    >>> plain("a long prompt", limit=7)
    'a long…'
    """
    # nearly all text is plain, and a page has hundreds of thousands of characters
    safe = text if text.isprintable() else "".join(map(_visible, text))
    if limit is not None and len(safe) > limit:
        return safe[: limit - 1] + "…"
    return safe


def cell(text: str, *, limit: int | None = None, style: str = "") -> Text:
    """An escaped text as a table cell that rich prints literally: square brackets in it are not markup."""
    from rich.text import Text  # imported late, so that a report is made without it

    return Text(plain(text, limit=limit), style=style)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


Style = Literal["share", "gap", "rank", "norm", "count"]
"""``share`` in [0, 1]; ``gap`` a signed difference of shares; ``rank`` around 1 to 100; ``norm`` any magnitude;
``count`` an integer."""

UNDEFINED = "—"
FACTS = "A number of one step or one matrix is a fact about it, and has no interval"
"""A table's remark on numbers without sampling error."""
IN_THE_FILES = "Intervals that have no room here are in the JSON and the CSV"
"""A table's remark where it has no room for all intervals."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Footnotes(Struct, kw_only=True):
    """The reasons why numbers of one table are undefined, each once; none of a table that is not shown."""

    is_shown: bool = True
    _reasons: list[str] = []
    _remarks: list[str] = []

    def number(self, reason: str) -> str:
        """The raised number of a footnote, to follow a word: ``cannot²``."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return str(self._reasons.index(reason) + 1).translate(_RAISED)

    def remark(self, sentence: str) -> None:
        """Adds, once, a remark that no single number refers to, such as on omitted rows."""
        if sentence not in self._remarks:
            self._remarks.append(sentence)

    def lines(self) -> tuple[str, ...]:
        """The footnotes, a line per reason, numbered as the marks are; then the remarks."""
        numbered = enumerate(self._reasons, start=1)
        return (*(f"{str(number).translate(_RAISED)} {reason}" for number, reason in numbered), *self._remarks)


def format_number(value: float, style: Style) -> str:
    """A number with as many digits as its kind bears, a word where it is not finite; no norm or count is ``-0``.

    Three decimals for shares, and an exponent where these would read as zero; two for ranks.

    >>> format_number(0.4125, "share"), format_number(1.8e-5, "share"), format_number(-0.25, "gap")
    ('0.412', '1.8e-05', '-0.250')
    >>> format_number(1485.874, "gap")
    '+1,485.9'
    """
    if not math.isfinite(value):
        return non_finite_word(value)
    if style == "count":
        return f"{value:z,.0f}"
    if style == "norm":
        return f"{value:z.4g}"
    sign = "+" if style == "gap" else ""
    if style == "rank":
        return f"{value:{sign}.2f}"
    if abs(value) >= 100:  # a length in characters
        return f"{value:{sign},.1f}"
    if 0 < abs(value) < 0.0005:
        return f"{value:{sign}.1e}"
    return f"{value:{sign}.3f}"


def format_estimate(
    estimate: Estimate, notes: Footnotes, style: Style, *, interval: bool = True, interval_note: str = ""
) -> str:
    """``0.412 [0.33, 0.49]``, or the dash that points to a footnote; ``alone`` says why it has no interval."""
    if estimate.value is None:
        return f"{UNDEFINED}{notes.number(estimate.undefined or 'undefined')}"
    text = format_number(estimate.value, style)
    if not interval or estimate.interval is None:
        return f"{text}{notes.number(f'no interval: {interval_note}')}" if interval and interval_note else text
    low, high = estimate.interval
    if (
        style in {"share", "gap"} and high - low >= 0.05 and max(-low, high) < 100
    ):  # two decimals, three of a narrow one
        sign = "+" if style == "gap" else ""
        return f"{text} [{low:{sign}.2f}, {high:{sign}.2f}]"
    return f"{text} [{format_number(low, style)}, {format_number(high, style)}]"


def no_interval(num_units: int, units: str = "live groups") -> str:
    """Why the mean of some units has no interval: there is one of them, or no two differ."""
    if num_units == 1:
        return f"one {units.removesuffix('s')} does not tell how they differ"
    return f"all {units} have this very value"


def key_number_words(number: KeyNumber) -> list[tuple[str, str]]:
    """A number and the one that belongs to it, each with its interval: ``("49.1 %", "[44.8 %, 53.5 %]")``."""
    words = []
    for estimate in (number.value, number.then):
        if estimate is not None:
            numbers = (() if estimate.value is None else (estimate.value,)) + (estimate.interval or ())
            text, *ends = [
                percent(value) if number.style == "share" else format_number(value, number.style) for value in numbers
            ] or [UNDEFINED]
            words.append((text, f"[{', '.join(ends)}]" if ends else ""))
    return words


_LIMIT = 35  # characters of a line: as many as leave room for the numbers in 80 columns
_NAME = 20
_ONE_LINE = 29  # characters of two names for which a table of several pairs has room


def metric_title(name: str) -> str:
    """A metric's name in tables and figures; the budget of ``pass@<k>`` stays in it."""
    return name if budget_of(name) is not None else metric(name).title


def pair_label(pair: ComparedPair, comparison: Comparison) -> str:
    """A pair by its difference, ``sign - grpo``, and below it the settings of both; else by the names of its cells."""
    cells = {cell.name: cell for cell in comparison.cells}
    first, second = cells[pair.first], cells[pair.second]
    if pair.changed == "advantage":
        names = plain(second.advantage, limit=_NAME), plain(first.advantage, limit=_NAME)
        head, common = " - ".join(names), _settings(first)
    elif pair.changed == "run":
        later, former = (str(cell.settings["run"] if len(cell.runs) > 1 else cell.runs[0]) for cell in (second, first))
        head, common = f"{later} - {former}", _settings(first, left_out="run")
        if len(head) > _ONE_LINE and not common:
            return _on_two_lines(later, former)
    elif ", " in pair.changed:
        return _on_two_lines(second.name, first.name)
    else:
        head = f"{pair.changed} {second.settings[pair.changed]} - {first.settings[pair.changed]}"
        common = ", ".join(part for part in (first.advantage, _settings(first, left_out=pair.changed)) if part)
    lines = [plain(head, limit=_LIMIT), *([plain(f"  at {common}", limit=_LIMIT)] if common else [])]
    return "\n".join(lines)


def _on_two_lines(later: str, former: str) -> str:
    return f"{plain(later, limit=_LIMIT - 2)} -\n  {plain(former, limit=_LIMIT - 2)}"


def _settings(cell: ComparedCell, *, left_out: str = "") -> str:
    return ", ".join(
        f"{name} {value}" for name, value in cell.settings.items() if name != left_out and value is not None
    )


def condition(verdict: Verdict) -> str:
    """The requirement as a line: ``frac_reward_zero_std <= 0.5``, or ``pass@8 against the baseline``."""
    if verdict.change is not None:
        return f"{verdict.metric} against the baseline"
    return f"{verdict.metric} {verdict.op} {verdict.limit:g}"


Tone = Literal["fine", "look", "problem", "unknown", ""]

STYLES: Mapping[Tone, str] = {
    "fine": "color(28)",
    "look": "color(136)",
    "problem": "color(167)",
    "unknown": "color(32)",
    "": "",
}
"""Severity of an answer -> its style in rich."""
QUIET = "color(243)"
"""The style of text for reference: a path, the names of further tables. Never of a unit or a reason."""

"""Numbers in sentences: a value with its interval, a share in per cent; and which of many steps or rows are named.

Tables have room for footnotes and columns and word their numbers in :mod:`gradscope.render.words`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, takewhile
from pathlib import PurePath
from typing import TypeVar

from gradscope.estimate import Estimate

Form = str | Callable[[float], str]
"""How one number reads: a format specification such as ``+.2f``, or a function such as :func:`percent`."""


def with_interval(estimate: Estimate, form: Form) -> str:
    """A defined number in a sentence, with its interval where it has one.

    Raises:
        ValueError: The number is undefined, and the sentence should say why instead.

    >>> with_interval(Estimate(value=0.41, low=0.33, high=0.49), ".2f")
    '0.41 [0.33, 0.49]'
    >>> with_interval(Estimate.exact(0.41), percent)
    '41.0 %'
    """
    if estimate.value is None:
        raise ValueError(f"an undefined number cannot be said: {estimate.undefined}")
    return f"{number(estimate.value, form)}{interval(estimate, form)}"


def interval(estimate: Estimate, form: Form) -> str:
    """The text after a number in a sentence: `` [0.33, 0.49]``, or nothing where there is no interval."""
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f" [{number(low, form)}, {number(high, form)}]"


def number(value: float, form: Form) -> str:
    """One number in a sentence or a table, or a word for it where it is not finite.

    >>> number(0.41, "+.1f"), number(math.nan, "+.1f")
    ('+0.4', 'NaN')
    """
    if not math.isfinite(value):
        return non_finite_word(value)
    return format(value, form) if isinstance(form, str) else form(value)


def listed(words: Sequence[str]) -> str:
    """Words in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def named_steps(steps: Sequence[int]) -> str:
    """Ascending steps in a sentence.

    >>> named_steps([3]), named_steps([1, 2, 3, 7])
    ('step 3', 'steps 1:3,7')
    """
    return f"step{'s' * (len(steps) > 1)} {as_ranges(steps)}"


def as_ranges(numbers: Sequence[int]) -> str:
    """Ascending integers as a command line takes them: between commas, three or more in a row as a range.

    >>> as_ranges([1, 2, 4, 5, 6, 9])
    '1,2,4:6,9'
    """
    parts: list[str] = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        row = [number for _, number in run]
        parts += [f"{row[0]}:{row[-1]}"] if len(row) > 2 else map(str, row)
    return ",".join(parts)


def steps_beside(steps: Sequence[int], absent: int) -> str:
    """Which ascending steps there are, for who asked for another: of many pieces the ends and the nearest.

    >>> steps_beside([2, 4, 8], 3), steps_beside(range(1, 21), 99), steps_beside(range(10, 500, 10), 101)
    ('It has steps 2,4,8.', 'It has steps 1 to 20.', 'It has steps 10 to 490, the nearest 100 and 110.')
    """
    ranges = as_ranges(steps)
    if ranges.count(",") > 8:
        nearest = sorted(sorted(steps, key=lambda step: abs(step - absent))[:2])
        return f"It has steps {steps[0]} to {steps[-1]}, the nearest {' and '.join(map(str, nearest))}."
    return f"It has steps {ranges if ',' in ranges else ranges.replace(':', ' to ')}."


Item = TypeVar("Item")


def evenly(items: Sequence[Item], limit: int) -> Sequence[Item]:
    """At most so many of some items, evenly spaced, the first and the last among these.

    >>> evenly("abcde", 3), evenly("ab", 3)
    (['a', 'c', 'e'], 'ab')
    """
    if len(items) <= limit:
        return items
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def non_finite_word(value: float) -> str:
    """How a number that is not finite is written, as JavaScript and Python read it back: JSON has no number for it.

    >>> [non_finite_word(value) for value in (math.nan, math.inf, -math.inf)]
    ['NaN', 'Infinity', '-Infinity']
    """
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def percent(share: float) -> str:
    """A share in per cent with one decimal; one that is not zero never reads as zero.

    >>> percent(0.4906), percent(0.0001), percent(0.0), percent(-0.0001)
    ('49.1 %', '<0.1 %', '0.0 %', '>-0.1 %')
    """
    if 0 < abs(share) < 0.0005:
        return "<0.1 %" if share > 0 else ">-0.1 %"
    return f"{100 * share:.1f} %"


def in_two_digits(share: float) -> str:
    """A share in per cent, however small: a spread of bfloat16 is some ten-thousandths.

    >>> in_two_digits(0.00012), in_two_digits(0.123), in_two_digits(0.997), in_two_digits(1.68e12)
    ('0.012 %', '12 %', '100 %', '1.7e+14 %')
    """
    return f"{100 * share:.0f} %" if 0.995 <= share < 1e4 else f"{100 * share:.2g} %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points with its sign and one decimal.

    >>> points(-0.051)
    '-5.1'
    """
    return f"{100 * difference:+.1f}"


def chance(p_value: float) -> str:
    """A p-value in a sentence, ``p = 0.012``; none is zero, but below a thousandth.

    >>> chance(0.0123), chance(0.0)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def amount(value: float) -> str:
    """A mean number of things: an integer with separators from a hundred on, else with three digits.

    >>> amount(12.53), amount(20480.4)
    ('12.5', '20,480')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:z.3g}"


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural takes an s.

    Example:
        >>> counted(1, "file"), counted(2000, "file")
        ('1 file', '2,000 files')
    """
    return f"{number:,} {noun}" + "s" * (number != 1)


def without_numbers(sentence: str) -> str:
    """What sentences share that differ in their numbers only, one update or several.

    >>> without_numbers("3 updates lie behind step 12") == without_numbers("1 update lie behind step 7")
    True
    """
    return re.sub(r"\d[\d.e+%-]*", "0", sentence).replace("0 updates", "0 update")


def names_apart(names: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Names of what came from paths, those that recur with the folders, or files, in which their paths differ.

    >>> names_apart(["a.jsonl", "a.jsonl", "b.jsonl"], ["run/gpt/out/a.jsonl", "run/claude/out/a.jsonl", "b.jsonl"])
    ['gpt', 'claude', 'b.jsonl']
    >>> names_apart(["gpt", "gpt"], ["first.jsonl", "second.jsonl"])
    ['first.jsonl/gpt', 'second.jsonl/gpt']
    """
    parts = [PurePath(path).parts for name, path in zip(names, paths, strict=True) if names.count(name) > 1]
    start, end = num_shared(parts), num_shared([parts_of[::-1] for parts_of in parts])
    split = [PurePath(path).parts for path in paths]
    rests = [
        "/".join(parts_of[start : len(parts_of) - end]) or path for parts_of, path in zip(split, paths, strict=True)
    ]
    return [
        name if names.count(name) == 1 else rest if name == parts_of[-1] else f"{rest}/{name}"
        for name, rest, parts_of in zip(names, rests, split, strict=True)
    ]


def num_shared(lists: Iterable[Sequence[str]]) -> int:
    """How many elements all begin with."""
    return sum(takewhile(bool, (len(set(elements)) == 1 for elements in zip(*lists, strict=False))))

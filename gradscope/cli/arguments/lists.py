"""Several values in one option: between commas, by repeating the option, and as ranges of whole numbers.

Every option that takes several values is read here, so `grpo,sign`, `1e-4,2e-4`, `0-4` and `2:8` mean the same wherever
they stand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradscope.errors import UsageError
from gradscope.outside.numerals import number_from

MOST_NUMBERS = 1_000_000  # of one range: a typing error, not a wish, is beyond it

_RANGE = re.compile(r"([0-9]{1,18})(?:\s*[:-]\s*([0-9]{1,18}))?")
_COMMA = re.compile(",")
_COMMA_OF_METRICS = re.compile(r",(?!\s*[0-9])")
"""A comma before a digit is one of the metric's own steps, as in ``reward@1,6,11-20``."""

Words = Sequence[str] | str | None
"""What was typed: a text for each time that the option stands there; None where it does not."""


def parse_names(option: str, words: Words) -> tuple[str, ...]:
    """Names between commas; ``option`` is as it is typed, for the message."""
    return _parts(option, words, _COMMA)


def parse_choices(option: str, words: Words, choices: Sequence[str]) -> tuple[str, ...]:
    """Names between commas, each one of a few; UsageError where one is none of them."""
    names = parse_names(option, words)
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise UsageError(
            f"{option} does not take {unknown[0]!r}.", hint=f"Write {option} with any of {', '.join(choices)}"
        )
    return names


def parse_metrics(option: str, words: Words) -> tuple[str, ...]:
    """Metrics between commas, each with its steps: ``reward@1,6-8,pass@8`` are two."""
    return _parts(option, words, _COMMA_OF_METRICS)


def parse_files(option: str, words: Words) -> tuple[str, ...]:
    """Files or their URLs between commas; what is there under its whole name is one file, commas and all."""
    return tuple(name for word in _typed(words) for name in ([word] if _is_one(word) else _parts(option, word, _COMMA)))


def parse_numbers(option: str, words: Words) -> tuple[float, ...]:
    """Numbers between commas; UsageError where one is none."""
    try:
        return tuple(number_from(part) for word in _typed(words) for part in word.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} is {_shown(words)}, which is no number or list of numbers.", hint=f"Write {option} 1e-4,2e-4"
        ) from error


def parse_counts(option: str, words: Words) -> tuple[int, ...]:
    """Whole numbers between commas, and ranges with both ends, ``2:5`` or ``2-5``; UsageError for all else."""
    numbers: list[int] = []
    for part in (part.strip() for word in _typed(words) for part in word.split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise UsageError(
                f"{option} {part!r} is not a whole number or a range of them.",
                hint=f"Write {option} 4, {option} 2,8 or {option} 2:8",
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise UsageError(f"{option} {part} is a range that runs backwards.", hint=f"Write {option} {last}:{first}")
        if last - first > MOST_NUMBERS:
            raise UsageError(
                f"{option} {part} is a range of more than {MOST_NUMBERS:,} numbers.",
                hint=f"Write a shorter one, such as {option} {first}:{first + 100}",
            )
        numbers += range(first, last + 1)
    return tuple(numbers)


def parse_steps(words: Sequence[str] | None) -> tuple[int, ...] | None:
    """The steps of ``--step``, ascending, each once; None for ``all``, as where the option was not given."""
    named = [part.strip() for word in words or () for part in word.split(",")]
    if not named or "all" in named:
        return None
    return tuple(sorted(set(parse_counts("--step", named))))


def _parts(option: str, words: Words, comma: re.Pattern[str]) -> tuple[str, ...]:
    parts = tuple(part.strip() for word in _typed(words) for part in comma.split(word))
    if all(parts):
        return parts
    named = ",".join(filter(None, parts))
    raise UsageError(
        f"{option} {_shown(words)} names nothing between two commas.",
        hint=f"Write {option} {named}" if named else f"Name something, or leave {option} out.",
    )


def _typed(words: Words) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words or ()


def _shown(words: Words) -> str:
    return repr(",".join(_typed(words)))


def _is_one(word: str) -> bool:
    return bool(word) and Path(word).exists()

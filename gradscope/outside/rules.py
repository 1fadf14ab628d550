"""Rules for the values of settings from outside: a predicate and the words for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gradscope.errors import InputError

_SHOWN = 40


class FieldRule(Struct, frozen=True):
    """The allowed values of a field."""

    words: str  # completes "it can only be"
    holds: Callable[[Any], bool]

    def or_null(self) -> FieldRule:
        """The same, or null."""
        return FieldRule(f"{self.words} or null", lambda value: value is None or self.holds(value))


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold; true and false are none."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def integer_between(low: int, high: int | None = None) -> FieldRule:
    """An integer within bounds."""
    words = f"a whole number from {low} {'on' if high is None else f'to {high}'}"
    return FieldRule(words, lambda value: type(value) is int and low <= value and (high is None or value <= high))


TEXT = FieldRule("text", lambda value: isinstance(value, str))
FLAG = FieldRule("true, false", lambda value: isinstance(value, bool))
OBJECT = FieldRule("an object", lambda value: isinstance(value, Mapping))
NUMBER = FieldRule("a finite number", is_finite)
FROM_ZERO = FieldRule("a finite number from 0 on", lambda value: is_finite(value) and value >= 0)
ABOVE_ZERO = FieldRule("a finite number above 0", lambda value: is_finite(value) and value > 0)
NUMBERS = FieldRule(
    "a list of finite numbers", lambda value: isinstance(value, (list, tuple)) and all(map(is_finite, value))
)
TEXTS = FieldRule(
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
)


def require_fields(
    values: Mapping[str, Any],
    rules: Mapping[str, FieldRule],
    origin: str | Path,
    *,
    hint: str,
    cause: str | None = None,
) -> None:
    """Refuse settings that break their rule; a rule of a missing field holds.

    Args:
        values: Field -> value.
        rules: Field -> its allowed values.
        origin: Where they come from, for the message.

    Raises:
        InputError: One is something else.
    """
    for name, rule in rules.items():
        if name in values and not rule.holds(values[name]):
            raise InputError(
                f"{origin}: {name} is {str(values[name])[:_SHOWN]!r}, and it can only be {rule.words}.",
                hint=hint,
                cause=cause,
            )

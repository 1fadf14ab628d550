"""What a cell of a foreign log means: a reward, a message, an identity. Text is kept raw; output escapes it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any

from gradscope.outside.numerals import number_from

_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
ABSENT = object()
"""Stands for a key that a row does not have."""


def parse_reward(value: Any, *, from_text: bool = False) -> float | str:
    """A finite reward, or in a few words the reason why it is none.

    Booleans count 1 and 0. Text is no number, even where it looks like one: a log that mixes both was written by a
    program that confused something, and guessing would hide it. CSV has nothing but text, so there it is read.

    Args:
        value: The cell.
        from_text: The file has no types, so text is parsed.

    Returns:
        The number, or the reason for the quarantine.
    """
    if value is ABSENT:
        return "the reward is missing"
    if value is None or (from_text and value == ""):
        return "the reward is null"
    if isinstance(value, str) and from_text:
        word = value.strip().lower()
        if word in {"true", "false"}:
            return float(word == "true")
        try:
            value = number_from(word)
        except ValueError:
            return "the reward is text"
    if isinstance(value, str):
        return "the reward is text"
    if not isinstance(value, (bool, int, float, Decimal)):
        return f"the reward is a {type(value).__name__}, not a number"
    try:
        number = float(value)
    except OverflowError:
        return "the reward is not finite"
    return number if math.isfinite(number) else "the reward is not finite"


def finite_or_none(value: Any) -> float | None:
    """A cell's number; None where it is missing, no number or not finite."""
    number = parse_reward(value)
    return None if isinstance(number, str) else number


def is_not_finite(value: Any) -> bool:
    """Whether a cell is NaN or an infinity, as a number."""
    return isinstance(value, float) and not math.isfinite(value)


def logged_number(value: Any) -> float | None:
    """A metric as the trainer logged it.

    Args:
        value: A cell of its log.

    Returns:
        The number, NaN and infinity included, as numbers or as words; a whole number beyond all floats is infinite.
        None where the cell is no number: booleans and other text are none, and null is what was not logged.

    Example:
        >>> logged_number(2), logged_number("NaN"), logged_number(True), logged_number("cosine")
        (2.0, nan, None, None)
    """
    if isinstance(value, str) and value.lower().strip("+-") in _NOT_FINITE:
        return float(value)
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def logged_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among the cells of a row of a trainer's log, by their keys."""
    found = {name: logged_number(cell) for name, cell in row.items()}
    return {name: number for name, number in found.items() if number is not None}


def is_number(value: Any) -> bool:
    """Whether a cell is a number, finite or not, or a boolean."""
    return isinstance(value, (bool, int, float))


def digest(*parts: Any) -> str:
    """A short name for long content of plain JSON values, the same in every file: 16 hexadecimal digits."""
    if len(parts) == 1 and type(parts[0]) is str:  # what most prompts are, at a third of the cost
        return hashlib.sha256(f"[{encode_basestring_ascii(parts[0])}]".encode()).hexdigest()[:16]
    return hashlib.sha256(_json(parts, sort_keys=True).encode()).hexdigest()[:16]


def _json(value: Any, **how: Any) -> str:
    try:
        return json.dumps(value, default=str, **how)
    except TypeError:  # of a pickle's dictionaries a key may be anything, or of kinds that have no order
        return json.dumps(repr(value))


def parse_messages(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Chat messages without the null keys that Arrow adds when it unifies structs; None where the cell holds none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return None
    if not all(isinstance(message, Mapping) and "role" in message for message in value):
        return None
    return tuple(_without_null(message) for message in value)


def text_of(value: Any) -> str:
    """The text of a prompt or completion: messages' contents joined by newlines, anything else as JSON; null as ""."""
    if isinstance(value, str):
        return value
    if value is None or value is ABSENT:
        return ""
    messages = parse_messages(value)
    if messages is None:
        return _json(value, ensure_ascii=False)
    return "\n".join(_content_of(message) for message in messages)


def _content_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and part.get("text"))
    return content if isinstance(content, str) else ""


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return value

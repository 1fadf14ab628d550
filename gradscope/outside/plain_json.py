"""JSON from anybody: bounded in depth and in the length of its numbers. A key that is named twice counts as its last.

Every part of gradscope that reads JSON uses this module. NaN and Infinity are read as numbers, which Python writes and
JSON does not have: whoever uses a number checks that it is finite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, AnyStr

from gradscope.outside.limits import read_limited

MAX_DEPTH = 100
"""Levels of lists and objects within one another: logs and configurations have a dozen, and each costs a call."""


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_OUTER = frozenset({dict, list, tuple})


class RefusedJsonError(ValueError):
    """Text is JSON of a kind that is not read.

    Args:
        why: The predicate of a sentence about the text: "is nested deeper than 100 levels".
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"it {why}")
        self.why = why


def parse_json(text: bytes | str) -> Any:
    """The value of a text of JSON, or of its UTF-8 without a byte-order mark.

    Raises:
        RefusedJsonError: It is nested deeper than ``MAX_DEPTH``, or has a number of more digits than Python converts
            (4300).
        JSONDecodeError: It is no JSON.
        UnicodeDecodeError: The bytes are not UTF-8. All of these are ValueErrors.
    """
    decode, refused = _decoder()
    try:
        try:  # in a third of the time of json.loads, where the text has no extensions of Python's, such as NaN
            value = decode(text)
        except (refused, UnicodeError):
            value = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise RefusedJsonError(_TOO_DEEP) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # only int() is left to raise, over a number's length
        raise RefusedJsonError("has a number of more than 4300 digits") from None
    # A text with few brackets needs no second look, which is nearly every one.
    has_many = _has_brackets(text, "[", "{") if isinstance(text, str) else _has_brackets(text, b"[", b"{")
    if has_many and is_deeper(value, MAX_DEPTH, is_tree=True):
        raise RefusedJsonError(_TOO_DEEP)
    return value


def _has_brackets(text: AnyStr, *brackets: AnyStr) -> bool:
    """Whether one of two brackets occurs often enough to be nested too deep; counting all takes as long as decoding."""
    for bracket in brackets:
        position, left = -1, MAX_DEPTH // 2
        while left and (position := text.find(bracket, position + 1)) >= 0:
            left -= 1
        if not left:
            return True
    return False


@cache
def _decoder() -> tuple[Callable[[bytes | str], Any], type[Exception]]:
    import msgspec  # 20 ms that `--help` does without

    return msgspec.json.Decoder().decode, msgspec.MsgspecError


def read_json(path: Path, named: Iterable[bytes] = ()) -> Any:
    """The value of a file of JSON, a configuration or a manifest; None where ``named`` has a text that it lacks.

    Raises:
        InputError: It is no regular file, or too large.
        OSError: It cannot be read.
        ValueError: It is no JSON: see :func:`parse_json`.
    """
    data = read_limited(path).removeprefix(b"\xef\xbb\xbf")
    return parse_json(data) if all(name in data for name in named) else None


def beginning(node: Any, depth: int, num_parts: int, num_elements: int) -> Any:
    """A document with the first parts of its long objects and lists, down to a depth; fewer of lists within lists."""
    if not depth:
        return node
    if isinstance(node, dict):
        parts = islice(node.items(), num_parts)
        return {key: beginning(item, depth - 1, num_parts, num_elements) for key, item in parts}
    if not isinstance(node, list):
        return node
    return [beginning(item, depth - 1, num_parts, min(num_elements, _INNER)) for item in node[:num_elements]]


_INNER = 24  # elements of a list within others


def is_deeper(value: Any, depth: int, *, is_tree: bool = False) -> bool:
    """Whether lists and objects are nested on more levels than that; parts that occur several times count once.

    In a tree, as JSON makes one, none does, and looking for them costs most of the time.
    """
    level: list[Any] = [value] if type(value) in _OUTER else []
    for _ in range(depth if level else 0):
        parts = chain.from_iterable(outer.values() if type(outer) is dict else outer for outer in level)
        level = [part for part in parts if type(part) in _OUTER]
        if not is_tree:
            level = list({id(part): part for part in level}.values())
        if not level:
            break
    return bool(level)

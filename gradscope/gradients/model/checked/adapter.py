"""An adapter's configuration before PEFT believes it: types, sizes, and regular expressions that end.

PEFT holds the names of all modules against the expressions in ``target_modules`` and its like. Python's matcher takes
exponential time for some, such as ``(a*)*b``, and cannot be stopped. Names of modules need none of those, so an
expression is read where it repeats no group and has few wildcards, and refused otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.model.checked.loading import UNREADABLE
from gradscope.outside.plain_json import read_json

_LARGEST = 1e12
_MOST_WILDCARDS = 4
_MOST_LETTERS = 4096
_ATOM = r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)"
_REPEATED = re.compile(rf"(?P<atom>{_ATOM})(?P<repeat>[*+]|\{{[0-9]*,[0-9]*\}}|\{{[0-9]+\}})?[?+]?", re.DOTALL)
_NARROW = re.compile(r"\\d|\[(?:0-9|\\d)\]|[A-Za-z0-9_]|\\\.")
"""Atoms that no long part of a module's name is made of: repeating them is cheap."""
_COUNT = "a whole number from 0 to 65536"
_NUMBER = "a finite number"
_TEXTS = "text, a list of texts or null"
_LIST = "a list of texts or null"
_FLAG = "true, false or null"
_TABLE = "an object of numbers or null"
_RULES = {
    "peft_type": "text",
    "r": _COUNT,
    "lora_alpha": _NUMBER,
    "lora_dropout": _NUMBER,
    "target_modules": _TEXTS,
    "exclude_modules": _TEXTS,
    "layers_pattern": _TEXTS,
    "modules_to_save": _LIST,
    "target_parameters": _LIST,
    "rank_pattern": _TABLE,
    "alpha_pattern": _TABLE,
    "fan_in_fan_out": _FLAG,
    "use_dora": _FLAG,
    "use_rslora": _FLAG,
}
"""Field -> what it is, where it is there."""


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The fields of an ``adapter_config.json``.

    Args:
        folder: The adapter's folder.

    Returns:
        Field -> value.

    Raises:
        InputError: It cannot be read, a field is not what it can be, or an expression may take without end.
    """
    file = folder / "adapter_config.json"
    try:
        config = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} has no readable adapter_config.json: {error}", hint="Copy the adapter again.", cause=UNREADABLE
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"{file} is not a JSON object.", hint="Copy the adapter again.", cause=UNREADABLE)
    for name, rule in _RULES.items():
        is_zero = name == "r" and config.get("peft_type") == "LORA" and config.get(name) == 0  # other kinds have it
        if name in config and (is_zero or not _holds(config[name], rule)):
            raise InputError(
                f"{file}: {name} is {str(config[name])[:40]!r}, and it can only be {rule}.",
                hint=_AGAIN,
                cause=UNREADABLE,
            )
    for name, pattern in _patterns(config):
        why = why_unbounded(pattern)
        if why is not None:
            raise InputError(
                f"{file}: the regular expression of {name} {why}: {pattern[:60]!r}.",
                hint="List the modules by their names instead.",
                cause=UNREADABLE,
            )
    return config


_AGAIN = "Save the adapter again with save_pretrained()."


def why_unbounded(pattern: str) -> str | None:
    r"""Why a regular expression over names of modules is refused.

    Returns:
        What it does; None where it is read.

    Example:
        >>> why_unbounded(r".*\.layers\.[0-9]+\.(q_proj|v_proj)")
        >>> why_unbounded("(a*)*b")
        'repeats a group'
    """
    if len(pattern) > _MOST_LETTERS:
        return f"has more than {_MOST_LETTERS} letters"
    if re.search(r"\\[1-9]|\(\?P=|\(\?\(", pattern):
        return "refers to a group of its own"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is none ({error})"
    wildcards, is_beside = 0, False
    for part in _REPEATED.finditer(pattern):
        if part["repeat"] is None:
            is_beside = False
        elif part["atom"] == ")":
            return "repeats a group"
        elif _NARROW.fullmatch(part["atom"]) is None:
            if is_beside:
                return "has a wildcard beside a wildcard"
            wildcards, is_beside = wildcards + 1, True
    return f"has more than {_MOST_WILDCARDS} wildcards" if wildcards > _MOST_WILDCARDS else None


def _patterns(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that PEFT reads as regular expressions."""
    for name in ("target_modules", "exclude_modules"):
        if isinstance(config.get(name), str):
            yield name, config[name]
    layers = config.get("layers_pattern") or ()
    yield from (("layers_pattern", pattern) for pattern in ([layers] if isinstance(layers, str) else layers))
    for name in ("rank_pattern", "alpha_pattern"):
        yield from ((name, pattern) for pattern in config.get(name) or ())


def _holds(value: Any, rule: str) -> bool:
    if rule == "text":
        return isinstance(value, str)
    if rule == _COUNT:
        return type(value) is int and 0 <= value <= 1 << 16
    if rule == _NUMBER:
        return _is_number(value)
    if value is None:
        return True
    if rule == _FLAG:
        return isinstance(value, bool)
    if rule == _TABLE:
        return isinstance(value, Mapping) and all(map(_is_number, value.values()))
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return is_list or (rule == _TEXTS and isinstance(value, str))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < _LARGEST  # NaN is below nothing

"""An adapter's configuration before PEFT believes it: types, sizes, and regular expressions that end.

PEFT holds the names of all modules against the expressions in ``target_modules`` and its like. Python's matcher takes
exponential time for some, such as ``(a*)*b``, and cannot be stopped. Names of modules need none of those, so an
expression is read where it repeats no group and has few wildcards, with letters between them, and refused otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.model.checked.loading import UNREADABLE
from gradscope.gradients.model.checked.model_folder import read_configuration
from gradscope.outside.rules import FLAG, TEXT, TEXTS, FieldRule, is_finite, require_fields, whole_from_to

_LARGEST = 1e12
_MOST_WILDCARDS = 4
_MOST_LETTERS = 4096
_ATOM = r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)"
_PARTS = re.compile(
    r"(?P<look>\(\?<?[=!])|(?P<flags>\(\?[a-zA-Z-]+\))|(?P<open>\((?:\?(?:P<\w+>|[a-zA-Z-]*:))?)|(?P<or>\|)"
    rf"|(?P<atom>{_ATOM})(?P<repeat>[*+]|\{{[0-9]*,[0-9]*\}}|\{{[0-9]+\}})?(?P<after>[?+]?)",
    re.DOTALL,
)
_NARROW = re.compile(r"\\d|\[(?:0-9|\\d)\]|[A-Za-z0-9_]|\\\.")
"""Atoms that no long part of a module's name is made of: repeating them is cheap, and few places have one."""
_COUNT = whole_from_to(0, 1 << 16)
_SIZE = FieldRule("a number below 1e12", lambda value: is_finite(value) and abs(value) < _LARGEST)
_NAMES = FieldRule("text, a list of texts", lambda value: isinstance(value, str) or TEXTS.holds(value)).or_null()
_TABLE = FieldRule(
    "an object of numbers", lambda value: isinstance(value, Mapping) and all(map(_SIZE.holds, value.values()))
).or_null()
_RULES = {
    "peft_type": TEXT,
    "r": _COUNT.or_null(),
    "lora_alpha": _SIZE.or_null(),
    "lora_dropout": _SIZE,
    "target_modules": _NAMES,
    "exclude_modules": _NAMES,
    "layers_pattern": _NAMES,
    "modules_to_save": TEXTS.or_null(),
    "target_parameters": TEXTS.or_null(),
    "rank_pattern": _TABLE,
    "alpha_pattern": _TABLE,
    "fan_in_fan_out": FLAG.or_null(),
    "use_dora": FLAG.or_null(),
    "use_rslora": FLAG.or_null(),
}
"""Field -> what it is, where it is there."""
_OF_LORA = {"r": whole_from_to(1, 1 << 16), "lora_alpha": _SIZE}
"""Other kinds have a rank of 0 or null, and no scale."""
_AGAIN = "Save the adapter again with save_pretrained()."


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
    config = read_configuration(file)
    of_kind = _OF_LORA if config.get("peft_type") == "LORA" else {}
    require_fields(config, _RULES | of_kind, file, hint=_AGAIN, cause=UNREADABLE)
    for name, pattern in _patterns(config):
        why = why_unbounded(pattern)
        if why is not None:
            raise InputError(
                f"{file}: the regular expression of {name} {why}: {pattern[:60]!r}.",
                hint="List the modules by their names instead.",
                cause=UNREADABLE,
            )
    return config


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
    if re.search(r"\(\?[a-zA-Z]*x", pattern):
        return "has the flag x"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is none ({error})"
    return _why_slow(re.sub(r"\(\?#[^)]*\)", "", pattern))


def _why_slow(pattern: str) -> str | None:
    """Why an expression may take long over a name of n letters: each wildcard that may start anywhere is a factor n.

    A wildcard behind another one starts at few places where a letter stands between them whichever way is taken: in
    each alternative, not in an optional part, and not in what only looks ahead or back.

    Returns:
        What it does; None where it is read.
    """
    wildcards, is_beside = 0, False
    groups: list[tuple[bool, bool, bool]] = [(False, False, False)]
    for part in _PARTS.finditer(pattern):
        is_narrow = _NARROW.fullmatch(part["atom"] or "") is not None
        if part["flags"]:
            continue
        if part["look"] or part["open"]:
            groups.append((is_beside, False, part["look"] is not None))
        elif part["or"]:
            before, ended_beside, looks = groups[-1]
            groups[-1] = (before, ended_beside or is_beside, looks)
            is_beside = before
        elif part["atom"] == ")":
            if part["repeat"]:
                return "repeats a group"
            before, ended_beside, looks = groups.pop()
            is_beside = before if looks else is_beside or ended_beside or (part["after"] == "?" and before)
        elif part["repeat"] is None:
            is_beside &= not is_narrow or part["after"] == "?"
        elif not is_narrow:
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

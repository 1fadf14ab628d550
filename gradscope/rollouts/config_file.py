"""A trainer's configuration in a file: JSON, YAML or TOML, and its nested values by their paths."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.outside.limits import read_limited
from gradscope.outside.plain_json import MOST_DEPTH, is_deeper, parse_json

_FORMATS = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
_MOST_VALUES = 100_000
_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)
_MOST_REFERENCES = 8  # longest chain of values that refer to values


def config_format(path: Path) -> str:
    """The format that a file is read in, by its suffix."""
    return _FORMATS.get(path.suffix, "JSON")


def read_document(path: Path) -> Any:
    """The parsed document of a file.

    Raises:
        InputError: It is no regular file, or too large.
        ValueError: It is not of its format, too deep, or refers to itself so often that it has too many values.
    """
    text = read_limited(path).decode("utf-8")
    kind = config_format(path)
    try:
        document = _yaml(text) if kind == "YAML" else tomllib.loads(text) if kind == "TOML" else parse_json(text)
    except RecursionError:
        document = _ENDLESS
    if is_deeper(document, MOST_DEPTH):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    values = _leaves(document, "") if isinstance(document, Mapping) else ()
    if next(islice(values, _MOST_VALUES, None), None) is not None:
        raise ValueError(f"it has more than {_MOST_VALUES:,} values, those that it refers to counted each time")
    return document


def _yaml(text: str) -> Any:
    import yaml  # few logs come with YAML

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value of nested settings; one that refers to another, as Hydra writes it, has the other's value.

    Example:
        >>> flattened({"data": {"length": 8}, "rollout": {"response_length": "${data.length}"}})
        {'data.length': 8, 'rollout.response_length': 8}
    """
    flat = dict(_leaves(config, ""))
    return {name: _resolved(value, flat) for name, value in flat.items()}


def _leaves(config: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def _resolved(value: Any, flat: Mapping[str, Any]) -> Any:
    for _ in range(_MOST_REFERENCES):
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            return value
        value = flat.get(reference[1], None if reference[2] is None else _yaml(reference[2]))
    return None

"""Requirements on a run: one small grammar, ``<metric> <op> <number>``, on the command line or in a TOML file."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from gradscope.diagnostics.inputs.toml_file import read_toml
from gradscope.errors import UsageError
from gradscope.outside.numerals import number_from
from gradscope.outside.rules import is_finite
from gradscope.results.check import BaselineRule, Operator, Requirement

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
"""What each operator does."""

_GRAMMAR = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<op>[<>=!]+)\s*(?P<limit>\S+)\s*")
_MEANT = {"=": "==", "=<": "<=", "=>": ">=", "<>": "!=", "=!": "!="}
"""Operators as other languages and tired people write them."""
_EXAMPLE = "Write a metric, an operator and a number: 'frac_reward_zero_std <= 0.5'"


def parse_requirement(text: str) -> Requirement:
    """Reads ``<metric> <op> <number>``.

    Whether there is such a metric is decided by :func:`check_run`, which knows what the trainer logged; its error names
    the nearest one.

    Returns:
        The requirement.

    Raises:
        UsageError: The text does not read so, the operator is none, or the limit is not a finite number.

    Example:
        >>> parse_requirement("pass@8 >= 0.25")
        Requirement(metric='pass@8', op='>=', limit=0.25)
    """
    parts = _GRAMMAR.fullmatch(text)
    if parts is None:
        raise UsageError(f"The requirement {text!r} is not '<metric> <op> <number>'.", hint=_EXAMPLE)
    op = next((option for option in get_args(Operator) if option == parts["op"]), None)
    if op is None:
        meant = _MEANT.get(parts["op"])
        written = f"Write '{parts['metric']} {meant} {parts['limit']}'" if meant else ""
        hint = written or f"The operators are {', '.join(COMPARE)}."
        raise UsageError(f"There is no operator {parts['op']!r} in the requirement {text!r}.", hint=hint)
    try:
        limit = number_from(parts["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(
            f"The limit {parts['limit']!r} of the requirement {text!r} is not a finite number.",
            hint=f"Write '{parts['metric']} {op} {_share(parts['limit'])}'",
        )
    return Requirement(metric=parts["metric"], op=op, limit=limit)


def _share(limit: str) -> str:
    """A limit as it is to be written: 50% as 0.5, what is no number as an example."""
    try:
        percent = float(limit.removesuffix("%"))
    except ValueError:
        return "0.5"
    return f"{percent / 100:g}" if math.isfinite(percent) else "0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """The table ``[tool.gradscope.check]`` of a configuration file."""

    requirements: tuple[Requirement, ...] = ()
    """``require``: what a run must hold."""
    track: tuple[str, ...] = ()
    """``track``: metrics that are only compared with the baseline."""
    allow_unknown: tuple[str, ...] = ()
    """``allow_unknown``: metrics that may be undecided."""
    baseline: Path | None = None
    """``baseline``: the file, relative to the configuration."""
    rule: BaselineRule = "interval"
    """``rule``: what decides against a baseline."""
    margins: Mapping[str, float] = field(default_factory=dict)
    """``margins``: how much worse each metric may be; 0 where it is not named."""


def read_requirements(path: str | Path) -> tuple[Requirement, ...]:
    """``require = ["<metric> <op> <number>", ...]`` of a file that :func:`read_settings` reads."""
    return read_settings(path).requirements


def read_settings(path: str | Path) -> CheckSettings:
    """Everything that a configuration file says about checks.

    Args:
        path: ``pyproject.toml`` with a table ``[tool.gradscope.check]``; any other TOML file may call it ``[check]``.

    Returns:
        The settings; empty where the file has no such table.

    Raises:
        InputError: The file cannot be read or is not TOML.
        UsageError: A key is not known, or its value is of another type.
    """
    file = Path(path)
    document = read_toml(file)
    table = _table(document, "tool", "gradscope", "check")
    if not table and file.name != "pyproject.toml":
        table = _table(document, "check")
    unknown = sorted(set(table) - set(_KEYS))
    if unknown:
        raise UsageError(
            f"{file} sets {unknown[0]!r}, which check does not know.", hint=f"It knows {', '.join(_KEYS)}."
        )
    baseline, rule = table.get("baseline"), table.get("rule", "interval")
    if baseline is not None and not isinstance(baseline, str):
        raise UsageError(f"`baseline` in {file} is not a path.", hint='Write baseline = "ci/baseline.json".')
    if rule not in get_args(BaselineRule):
        raise UsageError(f"`rule` in {file} is {rule!r}.", hint='Write rule = "interval" or rule = "value".')
    return CheckSettings(
        requirements=tuple(parse_requirement(text) for text in _texts(table, "require", file)),
        track=_texts(table, "track", file),
        allow_unknown=_texts(table, "allow_unknown", file),
        baseline=None if baseline is None else file.parent / baseline,
        rule=rule,
        margins=_margins(table, file),
    )


_KEYS = {
    "require": 'require = ["frac_reward_zero_std <= 0.5"]',
    "track": 'track = ["pass@8"]',
    "allow_unknown": 'allow_unknown = ["pass@8"]',
    "baseline": "",
    "rule": "",
    "margins": "",
}
"""Key -> how a list of it is written."""


def _texts(table: dict[str, Any], key: str, file: Path) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"`{key}` in {file} is not a list of strings.", hint=f"Write {_KEYS[key]}.")
    return tuple(texts)


def _margins(table: dict[str, Any], file: Path) -> dict[str, float]:
    margins = table.get("margins", {})
    if not isinstance(margins, dict) or not all(_is_margin(value) for value in margins.values()):
        raise UsageError(
            f"`margins` in {file} is not a table of numbers from 0 on.", hint='Write margins = { "pass@8" = 0.02 }.'
        )
    return {name: float(value) for name, value in margins.items()}


def _is_margin(value: Any) -> bool:
    return is_finite(value) and value >= 0


def _table(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key, {}) if isinstance(document, dict) else {}
    return document if isinstance(document, dict) else {}

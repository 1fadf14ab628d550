"""Requirements on a run: one small grammar, ``<metric> <op> <number>``, on the command line or in a TOML file."""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from gradscope.errors import InputError, UsageError
from gradscope.results.check import Operator, Requirement

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
_EXAMPLE = "Write a metric, an operator and a number: 'frac_reward_zero_std <= 0.5'"


def parse_requirement(text: str) -> Requirement:
    """Read ``<metric> <op> <number>``.

    Whether there is such a metric is decided by :func:`gradscope.diagnostics.check.check_run`, which knows what the
    trainer logged; its error names the nearest one.

    Args:
        text: The requirement as typed.

    Returns:
        The requirement.

    Raises:
        UsageError: The text does not read so, the operator is none, or the limit is not a finite number.

    Example:
        >>> parse_requirement("pass@8 >= 0.25")
        Requirement(metric='pass@8', op='>=', limit=0.25)
    """
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        raise UsageError(f"The requirement {text!r} is not '<metric> <op> <number>'.", hint=_EXAMPLE)
    op = next((known for known in get_args(Operator) if known == found["op"]), None)
    if op is None:
        hint = "Equality is '=='." if found["op"] == "=" else f"The operators are {', '.join(COMPARE)}."
        raise UsageError(f"There is no operator {found['op']!r} in the requirement {text!r}.", hint=hint)
    try:
        limit = float(found["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(
            f"The limit {found['limit']!r} of the requirement {text!r} is not a finite number.",
            hint="Shares are written as 0.5, not as 50%.",
        )
    return Requirement(metric=found["metric"], op=op, limit=limit)


def read_requirements(path: str | Path) -> tuple[Requirement, ...]:
    """The requirements of a configuration file: ``require = ["<metric> <op> <number>", ...]``.

    Args:
        path: ``pyproject.toml`` with a table ``[tool.gradscope.check]``; any other TOML file may call it ``[check]``.

    Returns:
        The requirements in order; none where the file has no such table.

    Raises:
        InputError: The file cannot be read or is not TOML.
        UsageError: ``require`` is not a list of strings.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.", hint="Check the path.") from error
    except ValueError as error:
        raise InputError(f"{file} is not TOML: {error}.", hint="Repair the line that it names.") from error
    table = _table(document, "tool", "gradscope", "check")
    if not table and file.name != "pyproject.toml":
        table = _table(document, "check")
    texts = table.get("require", [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"`require` in {file} is not a list of strings.", hint='Write require = ["frac_reward_zero_std <= 0.5"].'
        )
    return tuple(parse_requirement(text) for text in texts)


def _table(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key, {}) if isinstance(document, dict) else {}
    return document if isinstance(document, dict) else {}

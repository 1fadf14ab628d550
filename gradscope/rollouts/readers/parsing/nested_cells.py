"""Cells of a nested row that may hold anything: each is taken as what it ought to be, or as nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.outside.numerals import whole_from
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import finite_or_none, is_number, parse_reward, text_of

LARGEST_STEP = 1 << 53
"""Beyond this a float no longer tells whole numbers apart."""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A cell's JSON object; an empty one where the cell is something else."""
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """A cell's JSON list; an empty one where the cell is something else."""
    return value if isinstance(value, list) else []


def numbers_in(value: Any) -> dict[str, float | None]:
    """The numbers of a JSON object.

    Returns:
        Key -> number; None where it is not finite. Keys of anything else are left out.

    Example:
        >>> numbers_in({"solved": True, "note": "ok"})
        {'solved': 1.0}
    """
    return {name: finite_or_none(cell) for name, cell in mapping_of(value).items() if is_number(cell)}


ENVIRONMENTS = ("data_source", "env_id", "env_name", "environment", "env", "agent_name", "agent", "dataset")
"""Names of columns that tell which environment, data source or agent a row is of, most telling first."""


def in_environment(environment: Any, prompt_id: str) -> str:
    """The id of a prompt within its environment, whose name, where a cell is one, stands before the last slash."""
    name = text_of(environment) if isinstance(environment, str) else ""
    return f"{name}/{prompt_id}" if name else prompt_id


def generation_seconds(row: Mapping[str, Any]) -> float | None:
    """How long a rollout took to generate, without its environment and its reward.

    Args:
        row: A row with ``generation_seconds``, or with a ``timing`` of ``llm_time`` (rLLM, in seconds) or of
            ``generation_ms`` (verifiers).

    Returns:
        Seconds; None where the row does not say, or says less than none.

    Example:
        >>> generation_seconds({"timing": {"generation_ms": 1500.0, "scoring_ms": 20.0}})
        1.5
    """
    timing = mapping_of(row.get("timing"))
    timings = ((row.get("generation_seconds"), 1.0), (timing.get("llm_time"), 1.0), (timing.get("generation_ms"), 1e-3))
    seconds = [
        number * unit for cell, unit in timings if (number := finite_or_none(cell)) is not None and number >= 0.0
    ]
    return seconds[0] if seconds else None


def whole_number(value: Any) -> int | None:
    """A step or an index.

    Returns:
        The number; None where the cell is no whole number from 0 on that a float can tell from its neighbors, nor text
        of one in digits.

    Example:
        >>> whole_number("10"), whole_number(3.0), whole_number(True), whole_number("1_0"), whole_number(-1)
        (10, 3, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        number = whole_from(value) if isinstance(value, str) else int(value) if value == int(value) else -1
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number <= LARGEST_STEP else None


def required_whole(value: Any, name: str) -> int:
    """A step or an index that a row is no use without.

    Returns:
        The number, as :func:`whole_number` reads it.

    Raises:
        UnusableRowError: The cell is no whole number; the message calls it by its name.
    """
    number = whole_number(value)
    if number is None:
        raise UnusableRowError(f"{name} is not a whole number")
    return number


def number_in_name(pattern: re.Pattern[str], path: Path) -> int | None:
    """A step that names of files or folders tell: the pattern's first group in the last part of a path that matches."""
    numbers = [match[1] for part in path.parts if (match := pattern.search(part))]
    return whole_number(numbers[-1]) if numbers else None


def usable_reward(value: Any, location: str, quarantine: QuarantineLog) -> float | None:
    """A cell's reward; a row without one is set aside, but stays in its group, which cannot be judged without it."""
    reward = parse_reward(value)
    if isinstance(reward, str):
        quarantine.add(reward, location)
        return None
    return reward

"""How a person names steps: `7`, `5:20` with both ends, `all`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradscope.errors import UsageError

MOST_STEPS = 1_000_000

_RANGE = re.compile(r"(\d+)(?::(\d+))?")


def parse_steps(words: Sequence[str] | None) -> tuple[int, ...] | None:
    """The steps that a command line asks for.

    Args:
        words: The values of ``--step``, as typed; None or empty where the option was not given.

    Returns:
        The steps, ascending, each once; None for all.

    Raises:
        UsageError: A value is neither a number, a range nor ``all``.

    Example:
        >>> parse_steps(["1", "4:6"])
        (1, 4, 5, 6)
    """
    if not words or "all" in words:
        return None
    steps: set[int] = set()
    for word in words:
        found = _RANGE.fullmatch(word.strip())
        if found is None:
            raise UsageError(f"--step {word!r} is not a step.", hint="Write a number, a range such as 5:20, or all.")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first > MOST_STEPS:
            raise UsageError(f"--step {word} is not a range of steps.", hint="Write the first step, a colon, the last.")
        steps.update(range(first, last + 1))
    return tuple(sorted(steps))

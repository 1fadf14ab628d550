"""How a person names steps: `7`, `1,5`, `5:20` or `5-20` with both ends, `all`."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.cli.arguments.lists import parse_counts


def parse_steps(words: Sequence[str] | None) -> tuple[int, ...] | None:
    """The steps that a command line asks for.

    Args:
        words: The values of ``--step``, as typed; None or empty where the option was not given.

    Returns:
        The steps, ascending, each once; None for all.

    Example:
        >>> parse_steps(["1", "4:6"])
        (1, 4, 5, 6)
    """
    named = [part.strip() for word in words or () for part in word.split(",")]
    if not named or "all" in named:
        return None
    return tuple(sorted(set(parse_counts("--step", named))))

"""The requirement that passes where a replay says match: the same gate as one line for a recipe's CI."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import options_of
from gradscope.rollouts.read_options import ReadOptions

_CARRIED = ("device", "dtype", "precision", "batch_tokens")
"""Engine options that ``gradscope check`` has too."""


def equivalent_check(path: str | Path, steps: Sequence[int] | None, read: ReadOptions, engine: EngineOptions) -> str:
    """The ``gradscope check`` command that asks what a replay asks.

    Args:
        path: The run.
        steps: Ascending steps that were asked for; None: all.
        read: How the run was read.
        engine: How gradients were computed.

    Returns:
        One line for a shell.

    Example:
        >>> equivalent_check("my-run", (1, 2, 3, 6), ReadOptions(), EngineOptions())
        "gradscope check my-run --require 'frac_replay_mismatch@1-3,6 == 0'"
    """
    selector = "" if steps is None else f"@{_ranges(steps)}"
    options = [word for flag, value in (*read.spelled(), *_spelled(engine)) for word in (flag, value)]
    return shlex.join(["gradscope", "check", str(path), *options, "--require", f"frac_replay_mismatch{selector} == 0"])


def _ranges(steps: Sequence[int]) -> str:
    """Steps as a selector writes them; one alone is a range too, because a bare number is a budget."""
    starts = [steps[0], *(after for before, after in pairwise(steps) if after != before + 1)]
    ends = [*(before for before, after in pairwise(steps) if after != before + 1), steps[-1]]
    parts = [f"{start}-{end}" if start != end else str(start) for start, end in zip(starts, ends, strict=True)]
    return f"{steps[0]}-{steps[0]}" if len(steps) == 1 else ",".join(parts)


def _spelled(engine: EngineOptions) -> Iterator[tuple[str, str]]:
    options, defaults = options_of(EngineOptions), EngineOptions()
    for name in _CARRIED:
        value = getattr(engine, name)
        if value != getattr(defaults, name):
            yield options[name].flags[0], str(value)

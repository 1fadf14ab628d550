"""The lines of ms-swift's ``completions.jsonl``: each a log call, every value a list with an element a rollout.

Legend: N rollouts of a line. A list is looked at as a whole where all of its elements are of the plain kind that
ms-swift writes, and element by element where some are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import LinesLog
from gradscope.rollouts.readers.parsing.scalars import digest, finite_or_none
from gradscope.rollouts.readers.trl.blocks import RowPrompts

KEYS = ("step", "prompt", "completion", "advantages")
"""The lists that every line has."""
_PLAIN_NUMBERS = frozenset({float, int, bool, NoneType})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The rollouts of one log call at one step."""

    path: Path
    """Its file."""
    location: str
    """``file:line``, for the quarantine."""
    step: int
    """The step."""
    columns: Mapping[str, Sequence[Any]]
    """Its lists by key, in order, [N] each."""

    @property
    def size(self) -> int:
        """How many rollouts it has, N."""
        return len(self.columns["step"])

    def row(self, at: int) -> dict[str, Any]:
        """One rollout's cells by key."""
        return {name: cells[at] for name, cells in self.columns.items()}


def read_lines(path: Path, quarantine: LinesLog) -> Iterator[Line]:
    """The log calls of a file, step by step: one line may hold the rollouts of several steps."""
    for location, row in read_jsonl(path, quarantine):
        lists = {name: value for name, value in row.items() if isinstance(value, list)}
        size = len(lists.get("step", ()))
        columns = {name: value for name, value in lists.items() if len(value) == size}
        if not size or not all(key in columns for key in KEYS):
            quarantine.add("step, prompt, completion and advantages are not lists of one length", location)
            continue
        steps = _steps(columns["step"])
        if None in steps:
            quarantine.add("the step is not a whole number", location)
            continue
        quarantine.held(size)
        different = dict.fromkeys(step for step in steps if step is not None)
        for step in different:
            part = columns
            if len(different) > 1:
                chosen = [at for at in range(size) if steps[at] == step]
                part = {name: [cells[at] for at in chosen] for name, cells in columns.items()}
            yield Line(path=path, location=location, step=step, columns=part)


def without_repeats(lines: Iterable[Line]) -> Iterator[tuple[Line, int]]:
    """The first of lines that hold one batch, which is written again at each update that it serves.

    Yields:
        The line, and how many of those behind it repeat it.
    """
    for _, repeats in groupby(lines, key=_content):
        line, *others = repeats
        yield line, len(others)


def _content(line: Line) -> dict[str, Sequence[Any]]:
    """What a repeated batch has in common: what stands behind the advantages (entropy, ...) is of the update."""
    names = list(line.columns)[: list(line.columns).index("advantages") + 1]
    return {name: line.columns[name] for name in names if name != "step"}


def finite_numbers(cells: Sequence[Any]) -> NDArray[np.float64]:
    """A list's numbers.

    Returns:
        [N]; NaN where an element is none, or not finite.
    """
    if _PLAIN_NUMBERS.issuperset(map(type, cells)):
        try:
            found = np.array(cells, dtype=np.float64)
            return np.where(np.isfinite(found), found, math.nan)
        except OverflowError:  # a whole number beyond all floats
            pass
    return to_floats(map(finite_or_none, cells))


def row_prompts(prompts: Sequence[Any]) -> RowPrompts:
    """The prompts of a line, [N]."""
    if not _is_text(prompts):
        return RowPrompts.of(prompts, np.arange(len(prompts)), digest)
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return RowPrompts.of(list(numbers), np.fromiter(map(numbers.__getitem__, prompts), np.int64), _text_id)


@lru_cache(maxsize=1 << 16)
def _text_id(prompt: str) -> str:
    """Prompts return from step to step."""
    return digest(prompt)


def _steps(cells: Sequence[Any]) -> list[int | None]:
    if not _is_text(cells):
        return list(map(whole_number, cells))
    steps = {cell: whole_number(cell) for cell in set(cells)}
    return [steps[cell] for cell in cells]


def _is_text(cells: Sequence[Any]) -> bool:
    return {str}.issuperset(map(type, cells))

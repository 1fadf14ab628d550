"""Lists of samples that a table writes out: a column for each sample, or a list as the text of a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from gradscope.rollouts.readers.column_roles import REWARD_LISTS, TEXT_LISTS
from gradscope.rollouts.readers.parsing.cells import parse_reward

_NUMBERED = re.compile(r"([a-z][a-z_]*?)_?\[?([0-9]{1,5})\]?(?:_([a-z_]+))?", re.IGNORECASE)
_OF_A_SAMPLE = frozenset(
    ("sample", "rollout", "completion", "response", "generation", "run", "trial", "attempt", "try")
)
"""Words beside a number that say which sample a column is of: a reward may also be the first of several functions."""
_NUMBERS = re.compile(r"[\[(]([-+\w\s.,]*)[\])]")
_WRAPPED = re.compile(r"(?:np\.\w+|tensor)\(([^()]*)\)")  # as NumPy 2 and PyTorch print the numbers in a list
_TEXTS = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:,|$)""", re.DOTALL)
_MOST_COLUMNS = 2000
_Numbered = tuple[tuple[str, tuple[str, ...], bool], ...]


def with_lists(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """A row with its samples as lists, and the names of those that are of samples by the names of their columns.

    >>> with_lists({"task": 7, "run_1_correct": "True", "run_2_correct": "False"})[0]["correct"]
    [1.0, 0.0]
    >>> with_lists({"task": 7, "scores": "[1, 0, 1]"})[0]["scores"]
    [1.0, 0.0, 1.0]
    """
    written = {name: row[name] for name in REWARD_LISTS if isinstance(row.get(name), str) and row[name][:1] in "[("}
    lists: dict[str, Any] = {name: cells for name, text in written.items() if (cells := _numbers_in(text))}
    if lists:
        texts = {name: row[name] for name in TEXT_LISTS if isinstance(row.get(name), str) and row[name][:1] == "["}
        lists |= {name: cells for name, text in texts.items() if (cells := _texts_in(text))}
    numbered = _numbered_columns(tuple(row)) if 1 < len(row) <= _MOST_COLUMNS else ()
    for name, columns, _ in numbered:
        cells = [row[column] for column in columns]
        lists[name] = cells if name in TEXT_LISTS else _as_numbers(cells)
    return ({**row, **lists} if lists else row), frozenset(name for name, _, are_samples in numbered if are_samples)


@lru_cache(maxsize=64)
def _numbered_columns(names: tuple[str, ...]) -> _Numbered:
    """The lists that columns with a number in their names make, counted up from 0 or 1, with those columns."""
    lists: dict[tuple[str, bool], dict[int, str]] = {}
    for match in filter(None, map(_NUMBERED.fullmatch, names)):
        before, number, after = match[1].lower(), int(match[2]), (match[3] or "").lower()
        words = [*before.split("_"), *filter(None, after.split("_"))]
        rest = [word for word in words if word not in _OF_A_SAMPLE]
        plural = "samples" if not rest else f"{before}s"
        texts = next((of for of in (before, plural) if of in TEXT_LISTS), None) if not after else None
        name = texts or ("_".join(rest) if "_".join(rest) in REWARD_LISTS else None)
        if name is not None:
            lists.setdefault((name, len(rest) < len(words)), {}).setdefault(number, match[0])
    counted = {of: columns for of, columns in lists.items() if len(columns) > 1 and _are_counted(columns)}
    return tuple(
        (name, tuple(columns[number] for number in sorted(columns)), are_samples)
        for (name, are_samples), columns in counted.items()
        if name not in names
    )


def _are_counted(numbers: Iterable[int]) -> bool:
    ordered = sorted(numbers)
    return ordered[0] in (0, 1) and ordered[-1] - ordered[0] == len(ordered) - 1


def _as_numbers(cells: Iterable[Any]) -> list[Any]:
    numbers = ((cell, parse_reward(cell, from_text=isinstance(cell, str))) for cell in cells)
    return [(cell or None) if isinstance(number, str) else number for cell, number in numbers]


def _numbers_in(text: str) -> list[Any]:
    """The numbers and truth values of a list that is written as text, as JSON, Python or NumPy does."""
    inner = _NUMBERS.fullmatch(_WRAPPED.sub(r"\1", text.strip()))
    cells = _as_numbers(filter(None, re.split(r"[\s,]+", inner[1]))) if inner else []
    return cells if all(isinstance(cell, float) or cell in ("nan", "None", "null") for cell in cells) else []


def _texts_in(text: str) -> list[str]:
    """The texts of a list that is written as text."""
    inner, at, texts = text.strip()[1:-1], 0, list[str]()
    while match := _TEXTS.match(inner, at):
        at = match.end()
        texts.append(match[1][1:-1])
    return texts if at == len(inner) else []

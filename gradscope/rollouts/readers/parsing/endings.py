"""How completions ended, in the words of trainers, engines and services."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradscope.rollouts.groups import ENDS, Status
from gradscope.rollouts.readers.parsing.cells import text_of

_STATUS = "status"  # a column of how completions ended, or of calls or tests
END_COLUMNS = ("finish_reason", "stop_reason", "is_truncated", "truncated", "finish_reasons", "stop_reasons", _STATUS)
"""Names of columns of how completions ended, and of lists of as much."""
_WORDS: dict[str, Status] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls"), "completed"),
    **dict.fromkeys(("completed", "succeeded"), "completed"),
    **dict.fromkeys(("length", "max_tokens", "max_new_tokens", "max_length", "truncated"), "truncated"),
    **dict.fromkeys(("abort", "aborted", "failed", "error"), "error"),
}
_FLAGS: dict[str, Status] = {
    **dict.fromkeys(("true", "1", "1.0"), "truncated"),
    **dict.fromkeys(("false", "0", "0.0"), "completed"),
}


def status_in(cell: Any, name: str = _STATUS) -> Status:
    """How a completion ended, by a cell of a column of that name: a word, also of an enumeration, or a flag.

    SGLang's reasons are objects with such a word as their type.

    >>> status_in("FinishReason.LENGTH", "finish_reason"), status_in(False, "is_truncated"), status_in("passed")
    ('truncated', 'completed', 'unknown')
    """
    word = text_of(cell["type"] if isinstance(cell, Mapping) and "type" in cell else cell).lower()
    flag = _FLAGS.get(word) if name.endswith("truncated") else None
    return flag or _WORDS.get(word.rpartition(".")[2], "unknown")


def are_cut_off(cells: Sequence[Any], name: str) -> NDArray[np.float64]:
    """Whether completions were cut off, by the cells of a column of that name, [R]; NaN where that is not known."""
    are_texts = {str}.issuperset(map(type, cells))
    texts = cells if are_texts else list(map(text_of, cells))
    cell_of = {text: text for text in set(texts)} if are_texts else dict(zip(texts, cells, strict=True))
    ends = {text: ENDS.get(status_in(cell, name), math.nan) for text, cell in cell_of.items()}
    return np.fromiter(map(ends.__getitem__, texts), np.float64, len(texts))


def end_column(names: Collection[str], cells_of: Callable[[str], Sequence[Any]]) -> str | None:
    """The column of how completions ended: by its name, or ``status`` where it says so of all and some were cut off."""
    named = (name for end in END_COLUMNS for name in names if name.rpartition(".")[2] == end)
    column = next(named, None)
    if column is None or not column.endswith(_STATUS):
        return column
    statuses = {status_in(cell) for cell in cells_of(column) if cell is not None}
    return column if "truncated" in statuses and "unknown" not in statuses else None

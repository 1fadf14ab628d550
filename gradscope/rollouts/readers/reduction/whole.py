"""The whole that the parts of a log add up to, however the log was cut.

Parts are taken in as they come, and their numbers go to columns that grow in place: no number of a log is held twice.

Legend: j groups of a part, P groups of all parts (one that goes on in another part is several), J groups and N rollouts
of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from gradscope.rollouts.arrays import to_indices
from gradscope.rollouts.readers.reduction.columns import REWARD
from gradscope.rollouts.readers.reduction.parts import (
    COLUMN_TYPES,
    Counts,
    Part,
    grouped,
    numbered,
    ranges,
    starts_of,
    unknown,
)
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable

_LEAST = 1 << 14
_NAMES = 1 << 16
"""Names that are compared at once, more where a step has more."""
_GROWTH = 1.125
"""Of a column that is full, so that at most an eighth of its memory is not used."""


class Whole:
    """What was seen of a log so far."""

    def __init__(self) -> None:
        self._step, self._size, self._place, self._prompt = (_Growing(np.int64) for _ in range(4))
        self._groups: list[pa.Array] = []
        self._texts: list[str] = []
        self._prompts: dict[str, int] = {}
        self._num_rows = 0
        # columns that were the same in every part are kept once
        self._columns: dict[tuple[str, ...], _Growing] = {}

    def add(self, part: Part) -> None:
        """Take in a part, in any order; its places are those of the whole log."""
        self._step.add(part.step)
        self._size.add(part.size)
        self._place.add(part.place)
        numbers = self._prompts
        self._prompt.add(np.array([numbers.setdefault(name, len(numbers)) for name in part.prompt], dtype=np.int64))
        self._texts += part.texts
        self._groups.append(part.group.cast(pa.large_string()))  # of many parts together more than 2 GB
        known = {name for names in self._columns for name in names}
        of_type: dict[Any, list[str]] = {}
        for name in (name for name in part.columns if name not in known):
            of_type.setdefault(COLUMN_TYPES.get(name, np.float64), []).append(name)
        for dtype, new in of_type.items():
            self._columns[tuple(new)] = _Growing(dtype)
            self._columns[tuple(new)].add(unknown(new[0], self._num_rows))
        columns = {}
        for names, column in self._columns.items():
            for at, same in enumerate(_told_apart(part, names)):
                columns[same] = column.copy() if at else column
        for names, column in columns.items():
            column.add(part.column(names[0]))
        self._columns = columns
        self._num_rows += int(part.size.sum())

    @property
    def is_empty(self) -> bool:
        """Whether no part had a group."""
        return not self._groups

    def table(self) -> tuple[RewardTable, NDArray[np.uint32] | None]:
        """The table of the parts: the same to the last bit however the log was cut, and in whatever order they came.

        Returns:
            Groups by step, then by their first row: a group that goes on in another part is one, and its first row
            names its prompt. And what tells rollouts apart, [N], where the parts know.
        """
        step, size, place = (column.values for column in (self._step, self._size, self._place))
        group = pa.concat_arrays(self._groups)
        self._groups = [group]
        order, count = _by_group(step, place, group)
        first = order[starts_of(count)]
        is_in_order = bool(np.all(order == np.arange(len(order))))
        rows = None if is_in_order else ranges(starts_of(size)[order], size[order])
        found: dict[str, NDArray[Any]] = {}
        for names, column in self._columns.items():
            found |= dict.fromkeys(names, column.values if rows is None else column.values[rows])
        prompt, at = numbered(self._prompt.values[first])
        prompts = list(self._prompts)
        texts = [self._texts[place] for place in first[at].tolist()] if self._texts else []
        lengths = found.get("num_tokens")
        table = RewardTable(
            step=step[first],
            names=group.take(to_indices(first)),
            prompt=prompt,
            prompts=tuple(prompts[number] for number in self._prompt.values[first][at].tolist()),
            size=np.add.reduceat(size[order], starts_of(count)),
            reward=found["reward"],
            rewards={name.removeprefix(REWARD): found[name] for name in found if name.startswith(REWARD)},
            num_tokens=lengths if lengths is not None and np.any(lengths != UNKNOWN) else None,
            seconds=_unless_unknown(found.get("seconds")),
            advantage=_unless_unknown(found.get("advantage")),
            prompt_texts=tuple(texts) if any(texts) else None,
            policy=found.get("policy"),
            place=place[first],
            sample=found.get("sample"),
        )
        return table, found.get("sample")


def _unless_unknown(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if values is None or np.isnan(values).all() else values


def table_of(part: Part) -> RewardTable:
    """The table of a log that is one part."""
    whole = Whole()
    whole.add(part)
    return whole.table()[0]


def _by_group(step: Counts, place: Counts, group: pa.Array) -> tuple[Counts, Counts]:
    """Groups of parts in the order of those that they make, then by place, [P]; and how many each is made of, [J]."""
    order = np.asarray(np.lexsort((place, step)), dtype=np.int64)
    ordered = step[order]
    found = [
        (order[some][rows], count)
        for some in _some_steps(ordered)
        for rows, count in [grouped(ordered[some], group.take(to_indices(order[some])))]
    ]
    pieces, counts = zip(*found, strict=True)
    return np.concatenate(pieces), np.concatenate(counts)


def _some_steps(ordered: Counts) -> Iterator[slice]:
    """Rows of a few steps at a time: steps share no group, and so many names as these have fit a processor's cache."""
    ends = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(ordered))
    start = 0
    while start < len(ordered):
        end = int(ends[min(int(np.searchsorted(ends, start + _NAMES)), len(ends) - 1)])
        yield slice(start, end)
        start = end


def _told_apart(part: Part, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Columns of a part, those that are the same together."""
    kinds: list[tuple[NDArray[Any], list[str]]] = []
    for name in names:
        values = part.column(name)
        same = next((kind for first, kind in kinds if _is_same(first, values)), None)
        if same is None:
            kinds.append((values, [name]))
        else:
            same.append(name)
    return [tuple(kind) for _, kind in kinds]


def _is_same(first: NDArray[Any], second: NDArray[Any]) -> bool:
    return first is second or np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


class _Growing:
    """A column that grows at its end."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._room = np.empty(_LEAST, dtype=dtype)
        self._length = 0

    def add(self, values: NDArray[Any]) -> None:
        end = self._length + len(values)
        if end > len(self._room):
            self._room.resize(int(end * _GROWTH), refcheck=False)  # much memory is moved without a copy
        self._room[self._length : end] = values
        self._length = end

    def copy(self) -> _Growing:
        other = _Growing(self._room.dtype)
        other.add(self.values)
        return other

    @property
    def values(self) -> NDArray[Any]:
        """What is there; of no use once more is added."""
        return self._room[: self._length]

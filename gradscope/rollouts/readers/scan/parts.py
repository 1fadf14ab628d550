"""Parts of a log, each reduced to its groups.

Legend: R rows of a part, j groups of it, n rollouts of these; J and N of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_indices, to_numpy, to_strings
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.reward_table import UNKNOWN, RewardTable
from gradscope.rollouts.types import RolloutGroup

Counts = NDArray[np.int64]

REWARD = "reward/"
"""What stands before the name of a reward function in the name of its column."""
NOT_COMPARED = 0
"""Stands for what tells a rollout apart where only the row reader can compare it."""
PLACES_A_FILE = 1 << 40
"""Numbers of rows that are kept free for each file of a log."""
COLUMN_TYPES: dict[str, Any] = {"num_tokens": np.int64, "sample": np.uint32}
"""Of the columns that are no float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The groups of some rows, in the order of their first rows."""

    place: Counts
    """The number of each group's first row within the log, [j]."""
    step: Counts
    """[j]."""
    group: pa.Array
    """Names within the step, strings, [j]."""
    prompt: Counts
    """The place of a group's prompt in ``prompts``, [j]."""
    prompts: Sequence[str] = ()
    """Ids of prompts; parts may share them."""
    size: Counts
    """Rollouts, [j]."""
    by_row: bool = False
    """Whether the row reader read them."""
    columns: Mapping[str, NDArray[Any]]
    """Numbers of the rollouts, group after group, [n]: ``reward``; each reward function as ``reward/NAME``; any of
    ``seconds``, ``advantage``, ``num_tokens``, ``sample`` (a short hash of what tells a rollout from the others of its
    group: two that have the same one by chance are looked at again). NaN where a reward is missing."""

    def after(self, num_files: int) -> Part:
        """The part as of a log in which so many files come before those that it was read with."""
        return replace(self, place=self.place + num_files * PLACES_A_FILE)

    def column(self, name: str) -> NDArray[Any]:
        """A column; where the part lacks it, what stands for nothing known, [n]."""
        if name in self.columns:
            return self.columns[name]
        unknown = {"num_tokens": UNKNOWN, "sample": NOT_COMPARED}.get(name, math.nan)
        return np.full(int(self.size.sum()), unknown, dtype=COLUMN_TYPES.get(name, np.float64))


def part_of_rows(
    step: Counts, group: pa.Array, columns: Mapping[str, NDArray[Any]], numbers_in_log: Counts
) -> tuple[Part, Counts]:
    """The groups of plain rows, whose prompts are yet to be named.

    Args:
        step: [R].
        group: Names within the step, strings, [R].
        columns: As those of a part, but row by row, [R].
        numbers_in_log: The numbers of the rows within the log, ascending, [R].

    Returns:
        The part, and the row that comes first in each group, [j].
    """
    order, size = grouped(step, group)
    first = order[starts_of(size)]
    made: dict[int, NDArray[Any]] = {}  # a reward function that is the reward stays one array
    part = Part(
        place=numbers_in_log[first],
        step=step[first],
        group=group.take(to_indices(first)),
        prompt=np.zeros(len(first), dtype=np.int64),
        size=size,
        columns={name: made.setdefault(id(values), values[order]) for name, values in columns.items()},
    )
    return part, first


def part_of_records(records: Sequence[tuple[int, Record]], columns: Iterable[str]) -> Part:
    """The groups of records.

    Args:
        records: Each with the number of its row within the log, ascending; at least one.
        columns: Those that the part must have.

    Returns:
        The part.
    """
    rows = [record for _, record in records]
    part, first = part_of_rows(
        np.array([record.step for record in rows], dtype=np.int64),
        to_strings([record.group for record in rows]),
        {name: np.array([_cell(record, name) for record in rows], dtype=COLUMN_TYPES.get(name)) for name in columns},
        np.array([place for place, _ in records], dtype=np.int64),
    )
    prompts = tuple(rows[at].prompt_id for at in first.tolist())
    return replace(part, prompt=np.arange(len(prompts)), prompts=prompts, by_row=True)


def _cell(record: Record, column: str) -> float | int | None:
    match column:
        case "reward":
            return math.nan if record.reward is None else record.reward
        case "seconds" | "advantage":
            number = record.seconds if column == "seconds" else record.advantage
            return math.nan if number is None else number
        case "num_tokens":
            return UNKNOWN if record.tokens is None else len(record.tokens.completion_ids)
        case "sample":
            return NOT_COMPARED
    value = record.rewards.get(column.removeprefix(REWARD))
    return math.nan if value is None else value


def replaced_groups(table: RewardTable, replaced: NDArray[np.bool_], groups: Sequence[RolloutGroup]) -> RewardTable:
    """A table in which some groups are those that the row reader made.

    Args:
        table: Groups as they were reduced.
        replaced: Which of its groups, [J].
        groups: All of them, in any order.

    Returns:
        The groups, in the order of ``table``.
    """
    made = {group.group_id: group for group in groups}
    kept, others = table.select(~replaced), RewardTable.of_groups(made[name] for name in table.select(replaced).ids())
    prompts = {name: at for at, name in enumerate(table.prompts)}
    codes = np.array([prompts.setdefault(name, len(prompts)) for name in others.prompts], dtype=np.int64)
    size = np.concatenate([kept.size, others.size])
    order = np.argsort(np.concatenate([np.flatnonzero(~replaced), np.flatnonzero(replaced)]))
    rows = ranges(starts_of(size)[order], size[order])

    def joined(first: NDArray[Any], second: NDArray[Any] | None, unknown: float) -> NDArray[Any]:
        second = np.full(len(others.reward), unknown, dtype=first.dtype) if second is None else second
        return np.concatenate([first, second])[rows]

    return replace(
        table,
        prompt=np.concatenate([kept.prompt, codes[others.prompt]])[order],
        prompts=tuple(prompts),
        size=size[order],
        reward=joined(kept.reward, others.reward, math.nan),
        rewards={name: joined(values, others.rewards.get(name), math.nan) for name, values in kept.rewards.items()},
        num_tokens=None if kept.num_tokens is None else joined(kept.num_tokens, others.num_tokens, UNKNOWN),
        seconds=None if kept.seconds is None else joined(kept.seconds, others.seconds, math.nan),
        advantage=None if kept.advantage is None else joined(kept.advantage, others.advantage, math.nan),
        prompt_texts=None,
    )


def repeated_samples(table: RewardTable, sample: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Groups in which a rollout may be logged twice.

    Args:
        sample: What tells rollouts apart, [N].

    Returns:
        [J].
    """
    repeated = np.zeros(len(table), dtype=np.bool_)
    for rows, ids in table.by_size(sample):
        ordered = np.sort(ids, axis=1)
        repeated[rows] = np.any(ordered[:, 1:] == ordered[:, :-1], axis=1) | np.any(ids == NOT_COMPARED, axis=1)
    return repeated


def grouped(step: Counts, group: pa.Array) -> tuple[Counts, Counts]:
    """Rows group by group.

    Args:
        step: [R].
        group: Strings, [R].

    Returns:
        The rows in an order in which those of a group stand side by side, groups by their first rows, [R]; and how
        many each group has, [j].
    """
    names = group.dictionary_encode()
    key = to_numpy(names.indices).astype(np.int64)
    if len(step) and np.any(step != step[0]):
        key += len(names.dictionary) * np.unique(step, return_inverse=True)[1]
    # Rows of a group mostly stand side by side already: runs of them are sorted, not rows.
    run = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
    length = np.diff(run, append=len(key))
    number, _ = numbered(key[run])
    order = np.argsort(number, kind="stable")
    size = np.bincount(number, weights=length).astype(np.int64)
    return ranges(run[order], length[order]), size


def numbered(values: Counts) -> tuple[Counts, Counts]:
    """Equal values share a number, counted in the order in which they first appear; and the place where each does."""
    _, first, place = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place], np.sort(first)


def starts_of(size: Counts) -> Counts:
    """Where each of some ranges of such sizes starts, one after the other."""
    return np.asarray(np.cumsum(size) - size, dtype=np.int64)


def ranges(start: Counts, size: Counts) -> Counts:
    """From each start on so many whole numbers, one range after the other."""
    return np.asarray(np.repeat(start - starts_of(size), size) + np.arange(int(size.sum())), dtype=np.int64)

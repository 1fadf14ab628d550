"""Parts of a log, each reduced to its groups.

Legend: R rows of a part, j groups of it, n rollouts of these; J and N of the log.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.machine import trim_heap
from gradscope.rollouts.arrays import (
    Counts,
    Flags,
    byte_counts,
    byte_offsets,
    run_starts,
    to_indices,
    to_numpy,
    to_strings,
    to_texts,
)
from gradscope.rollouts.groups import (
    UNKNOWN,
    RewardTable,
    RolloutGroup,
    completion_columns,
    rollout_columns,
    slices_of_steps,
)
from gradscope.rollouts.readers.parsing.records import Record, common_advantage
from gradscope.rollouts.readers.reduction.columns import Columns

NOT_COMPARED = 0  # the hash of a sample without an id, which only a comparison of rows can tell from another
ROWS_A_FILE = 1 << 40  # row numbers that each file of a log has for itself
_SAMPLED = 1 << 10  # names of samples that tell whether most differ
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("num_tokens", "policy", "num_characters", "text_hash"), np.int64(UNKNOWN)),
    "sample": np.uint32(NOT_COMPARED),
}
COLUMN_TYPES: dict[str, Any] = {name: value.dtype for name, value in _UNKNOWN.items()}
"""Of the columns that are no float64."""


class Part(Struct, frozen=True, kw_only=True):
    """The groups of some rows, in the order of their first rows."""

    first_row: Counts  # the number of each group's first row within the log, [j]
    step: Counts  # [j]
    group: pa.Array  # names within the step, strings, [j]
    prompt: pa.Array  # ids of their prompts, strings, [j]
    texts: Sequence[str] = ()  # their texts, [j]; empty where they are not stored
    size: Counts  # rollouts, [j]
    columns: Mapping[str, NDArray[Any]]
    """Numbers of the rollouts, group after group, [n]: ``reward``; each reward function as ``reward/NAME``; any of
    ``seconds``, ``truncated``, ``advantage``, ``num_tokens``, ``num_characters``, ``text_hash``, ``sample`` (a short
    hash of what distinguishes the rollouts of a group: two that collide are compared again). NaN where a reward is
    missing."""
    policies: Sequence[str] = ()  # names of policies, of which the column ``policy`` has indices
    may_repeat: bool = False  # whether a group may be there more than once

    def column(self, name: str) -> NDArray[Any]:
        """A column; all missing values where the part lacks it, [n]."""
        return self.columns[name] if name in self.columns else unknown(name, int(self.size.sum()))


def unknown(column: str, length: int) -> NDArray[Any]:
    """A column of missing values, [length]."""
    return np.full(length, _UNKNOWN.get(column, math.nan))


def part_of_rows(
    step: Counts, group: list[str] | pa.Array, columns: Mapping[str, NDArray[Any]], numbers_in_log: Counts
) -> tuple[Part, Counts]:
    """The groups of rows [R], of prompts named as they, and the indices of their rows, group after group, [n]."""
    order, size = grouped(step, group)
    first = order[starts_of(size)]
    made: dict[int, NDArray[Any]] = {}  # a reward function that equals the reward stays one array
    part = Part(
        first_row=numbers_in_log[first],
        step=step[first],
        group=(names := _names_of_rows(group, first)),
        prompt=names,
        size=size,
        columns={name: made.setdefault(id(values), values[order]) for name, values in columns.items()},
    )
    return part, order


def _names_of_rows(names: list[str] | pa.Array, rows: Counts) -> pa.Array:
    if isinstance(names, list):
        return to_strings([names[row] for row in rows.tolist()])
    return names.take(to_indices(rows))


def part_of_columns(columns: Columns, row_numbers: Counts, *, with_texts: bool) -> tuple[Part | None, Counts, Flags]:
    """The groups of usual rows, or None; the row of each rollout, by group [n]; the irregular rows."""
    has_flaw = (columns.step < 0) | ~np.isfinite(columns.numbers["reward"])
    if columns.is_irregular is not None:
        has_flaw |= columns.is_irregular
    row, group = columns.row_of, columns.group
    is_irregular = np.zeros(len(row_numbers), dtype=np.bool_)
    is_irregular[row[has_flaw]] = True
    is_irregular[[number for number, _ in columns.flaws]] = True
    all_rollouts = np.arange(len(row)) if columns.count is None else np.repeat(np.arange(len(row)), columns.count)
    part, chosen, numbers = None, all_rollouts, dict(columns.numbers)
    if columns.samples is not None:
        numbers["sample"] = sample_hashes(columns.samples)
    if columns.completions is not None:
        numbers |= completion_columns(columns.completions())
    for _ in range(2):
        if is_irregular.any():
            chosen = all_rollouts[~is_irregular[row[all_rollouts]]]
        if not len(chosen):
            return None, row_numbers[:0], is_irregular
        is_all = columns.count is None and len(chosen) == len(row)
        part, order = part_of_rows(
            columns.step if is_all else columns.step[chosen],
            group if is_all else _names_of_rows(group, chosen),
            numbers if is_all else {name: values[chosen] for name, values in numbers.items()},
            row_numbers[row[chosen]],
        )
        nameless = np.flatnonzero(byte_counts(part.group) == 0)
        if not len(nameless):
            break
        of_group = np.repeat(np.arange(len(part.size)), part.size)
        is_irregular[row[chosen[order[np.isin(of_group, nameless)]]]] = True
    assert part is not None
    first = chosen[order[starts_of(part.size)]].tolist()
    texts = columns.texts(first) if with_texts and columns.texts is not None else [""] * len(first) * with_texts
    prompt = part.prompt if columns.prompts is None else to_strings(columns.prompts(first))
    part = replace(part, prompt=prompt, texts=texts, policies=columns.policies)
    return part, row_numbers[row[chosen[order]]], is_irregular


def part_of_records(
    records: Sequence[tuple[int, Record]],
    usual: Part | None = None,
    usual_rows: Counts | None = None,
    *,
    with_texts: bool = False,
) -> Part:
    """The groups of records, by the numbers of their rows, merged with ``usual_rows``, [n]."""
    records = [numbered_record for numbered_record in records for _ in range(numbered_record[1].count)]
    rows = [with_counted_tokens(record) for _, record in records]
    columns = rollout_columns(rows, with_completions=usual is not None and "text_hash" in usual.columns)
    if any(record.sample_id is not None for record in rows):
        columns["sample"] = sample_hashes(record.sample_id for record in rows)
    policies = [record.policy or "" for record in rows]
    if any(policies):
        columns["policy"] = np.array([row if policy else UNKNOWN for row, policy in enumerate(policies)])
    step = np.array([record.step for record in rows], dtype=np.int64)
    group = to_strings([record.group for record in rows])
    row_numbers = np.array([number for number, _ in records], dtype=np.int64)
    prompt, texts = to_strings([record.prompt_id for record in rows]), [record.prompt for record in rows]
    if usual is not None and usual_rows is not None:
        group_of_row = np.repeat(np.arange(len(usual.size)), usual.size)
        step = np.concatenate([step, usual.step[group_of_row]])
        group = pa.concat_arrays([group, usual.group.cast(group.type).take(to_indices(group_of_row))])
        columns = {
            name: np.concatenate([columns.get(name, unknown(name, len(rows))), usual.column(name)])
            for name in dict.fromkeys((*columns, *usual.columns))
        }
        if usual.policies:
            of_usual = columns["policy"][len(rows) :]
            of_usual += np.where(of_usual == UNKNOWN, 0, len(policies))
            policies += usual.policies
        row_numbers = np.concatenate([row_numbers, usual_rows])
        prompt = pa.concat_arrays([prompt, usual.prompt.cast(prompt.type).take(to_indices(group_of_row))])
        texts += [usual.texts[group] for group in group_of_row.tolist()] if with_texts else []
    order = np.argsort(row_numbers, kind="stable")
    part, rows_of_part = part_of_rows(
        step[order],
        group.take(to_indices(order)),
        {name: values[order] for name, values in columns.items()},
        row_numbers[order],
    )
    first = order[rows_of_part[starts_of(part.size)]]
    return replace(
        part,
        prompt=prompt.take(to_indices(first)),
        texts=[texts[row] for row in first.tolist()] if with_texts else (),
        policies=policies if any(policies) else (),
    )


def with_counted_tokens(record: Record) -> Record:
    """A record with the number of its tokens, and their advantage, in place of the tokens."""
    if record.tokens is None:
        return record
    sequences = (*record.earlier, record.tokens)
    num_tokens = sum(len(tokens.completion_ids) for tokens in sequences)
    advantage = common_advantage(record.advantage, sequences)
    return replace(record, tokens=None, earlier=(), num_tokens=num_tokens, advantage=advantage)


def replaced_groups(table: RewardTable, replaced: Flags, groups: Sequence[RolloutGroup]) -> RewardTable:
    """A table in which some groups [J] are replaced by those of the same names; their order stays."""
    made, old = {group.group_id: group for group in groups}, table.select(replaced)
    new = RewardTable.from_groups((made[name] for name in old.ids()), with_completions=old.text_hash is not None)
    texts = None if table.prompt_texts is None else new.prompt_texts
    new = replace(new, names=old.names, first_row=old.first_row, prompt_texts=texts)
    return merge_parts(map(part_of_table, (table.select(~replaced), new)))


def part_of_table(table: RewardTable) -> Part:
    """The groups of a table whose rows are numbered."""
    return Part(
        first_row=np.asarray(table.first_row),
        step=table.step,
        group=table.names,
        prompt=to_strings(table.prompts_of_groups()),
        texts=table.texts_of_groups(),
        size=table.size,
        columns=table.columns,
        policies=table.policies,
    )


def sample_hashes(names: Iterable[str | None]) -> NDArray[np.uint32]:
    """A short hash of what tells each rollout from the others of its group; 0 where nothing does, [R]."""
    names = list(names)
    if len(set(names[:_SAMPLED])) > min(len(names), _SAMPLED) // 8:  # else it takes half the time to hash each once
        with suppress(TypeError, UnicodeEncodeError):  # of None, and of half a surrogate pair
            encoded = map(str.encode, names)  # type: ignore[arg-type]  # None raises
            return np.fromiter(map(zlib.crc32, encoded), np.uint32, len(names)) | np.uint32(1)
    hashes: dict[str | None, int] = {None: NOT_COMPARED}
    hashes |= {name: zlib.crc32(name.encode("utf-8", "surrogatepass")) | 1 for name in set(names) if name is not None}
    return np.fromiter(map(hashes.__getitem__, names), np.uint32, len(names))


def repeated_samples(table: RewardTable, sample: NDArray[np.uint32]) -> Flags:
    """Which groups may log a rollout twice, [J], by the hashes of samples, [N]."""
    repeated = np.zeros(len(table), dtype=np.bool_)
    for rows, ids in table.by_size(sample):
        ordered = np.sort(ids, axis=1)
        repeated[rows] = np.any(ordered[:, 1:] == ordered[:, :-1], axis=1) | np.any(ids == NOT_COMPARED, axis=1)
    return repeated


def grouped(step: Counts, group: list[str] | pa.Array) -> tuple[Counts, Counts]:
    """An order of rows by group, groups by their first row, [R], and the sizes of groups, [j]."""
    # Rows of a group are mostly adjacent already, so runs of equal names are sorted, not rows.
    if isinstance(group, list):
        begins = run_starts(group)
    else:
        code = to_numpy(group.dictionary_encode().indices)
        begins = np.diff(code, prepend=-1) != 0
    begins[1:] |= step[1:] != step[:-1]
    run = np.flatnonzero(begins)
    if isinstance(group, list):
        codes: dict[str, int] = {}
        key = np.fromiter(map(codes.setdefault, [group[row] for row in run.tolist()], range(len(run))), np.int64)
    else:
        key = code[run].astype(np.int64)
    length = np.diff(run, append=len(step))
    if np.bincount(key).max(initial=0) <= 1:  # as of most logs: each group is one run, and nothing has to be sorted
        return np.arange(len(step)), length
    if np.any(step[run] != step[0]):
        key += (key.max() + 1) * np.unique(step[run], return_inverse=True)[1]
    number, _ = numbered(key)
    order = np.argsort(number, kind="stable")
    size = np.bincount(number, weights=length).astype(np.int64)
    return ranges(run[order], length[order]), size


def numbered(values: Counts) -> tuple[Counts, Counts]:
    """Values numbered in the order of their first appearance, and the index of each first appearance."""
    _, first, code = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[code], np.sort(first)


def starts_of(size: Counts) -> Counts:
    """The start of each range where ranges of these sizes follow one another."""
    return np.asarray(np.cumsum(size) - size, dtype=np.int64)


def ranges(start: Counts, size: Counts) -> Counts:
    """The indices of ranges, one after the other."""
    return np.asarray(np.repeat(start - starts_of(size), size) + np.arange(int(size.sum())), dtype=np.int64)


_WORTH_ARROW = 1 << 16  # names that take as long in Python as to import Arrow's functions
_NAMES = 1 << 16  # names that are compared at a time, so that they fit into the cache of a processor


def merge_parts(parts: Iterable[Part]) -> RewardTable:
    """The table of parts, the same to the last bit however the log was cut and in whatever order the parts come.

    Groups are sorted by step, then by first row. The pieces of a group in several parts become one, whose first row
    names its prompt. Equal columns share an array. Without groups the table is empty.
    """
    pieces = _Pieces()
    for part in parts:
        pieces.add(part)
    step, size, first_row = pieces.numbers()
    if not len(step):
        return RewardTable.from_groups(())
    groups, prompts = pieces.groups.array(), pieces.prompts.array()
    order, num_parts = _by_group(step, first_row, groups, np.concatenate(pieces.starts))
    trim_heap()
    is_in_order = bool(np.all(order[1:] > order[:-1]))
    rows = None if is_in_order else ranges(starts_of(size)[order], size[order])
    first: Counts | slice = slice(None)
    if not is_in_order or len(num_parts) < len(order):  # else nothing of a long log is copied
        first = order[starts_of(num_parts)]
        size = np.add.reduceat(size[order], starts_of(num_parts))
        del order, num_parts
        groups, prompts = (names.take(to_indices(first)) for names in (groups, prompts))
    prompt, prompt_ids = _encoded(prompts)
    prompt_texts: tuple[str, ...] | None = None
    if any(pieces.texts):
        first_of_prompt = np.unique(prompt, return_index=True)[1]
        prompt_texts = tuple(pieces.texts[piece] for piece in np.arange(len(step))[first][first_of_prompt].tolist())
    columns = pieces.columns(rows)
    return RewardTable.from_columns(
        columns,
        step=step[first],
        names=groups,
        prompt=prompt,
        prompts=tuple(prompt_ids),
        size=size,
        prompt_texts=prompt_texts,
        first_row=first_row[first],
        policies=_renumber_policies(columns, list(pieces.policies)) if "policy" in columns else (),
    )


def _encoded(names: pa.Array) -> tuple[Counts, list[str]]:
    """Names numbered in the order of their first appearance, and the different names."""
    if len(names) > _WORTH_ARROW:
        encoded = names.dictionary_encode()
        return to_numpy(encoded.indices).astype(np.int64), to_texts(encoded.dictionary)
    numbers: dict[str, int] = defaultdict(count().__next__)
    return np.fromiter(map(numbers.__getitem__, to_texts(names)), np.int64, len(names)), list(numbers)


def _renumber_policies(columns: dict[str, NDArray[Any]], names: Sequence[str]) -> tuple[str, ...]:
    """The policies in the order of the rows, by which the column of them is numbered anew."""
    is_named = columns["policy"] != UNKNOWN
    numbers, first = numbered(columns["policy"][is_named])
    named = columns["policy"][is_named][first].tolist()
    columns["policy"] = np.full(len(is_named), UNKNOWN)
    columns["policy"][is_named] = numbers
    return tuple(names[number + 1] for number in named)  # the first name is that of no policy


class _Strings:
    """Strings in buffers that grow."""

    def __init__(self) -> None:
        self._letters, self._ends = bytearray(), bytearray(8)

    def add(self, strings: pa.Array) -> None:
        """Add an array."""
        offsets = byte_offsets(strings).astype(np.int64)
        self._ends += (offsets[1:] - offsets[0] + len(self._letters)).tobytes()
        self._letters += memoryview(strings.buffers()[2] or b"")[offsets[0] : offsets[-1]]

    def array(self) -> pa.Array:
        """All of them; the buffers are handed over, so that what is reordered is in memory once."""
        ends, letters = pa.py_buffer(self._ends), pa.py_buffer(self._letters)
        self._letters, self._ends = bytearray(), bytearray(8)
        return pa.LargeStringArray.from_buffers(len(ends) // np.dtype(np.int64).itemsize - 1, ends, letters)


class _Pieces:
    """The groups of parts, one after another.

    Their numbers are in buffers that grow: arrays of a long log would be in memory twice while they are concatenated.
    """

    def __init__(self) -> None:
        self.groups, self.prompts = _Strings(), _Strings()  # names
        self.policies: dict[str, int] = defaultdict(count().__next__, {"": UNKNOWN})  # names and their codes
        self.texts: list[str] = []  # of the prompts
        self.starts = [np.zeros(0, dtype=np.int64)]  # of stretches of groups without a repeated one
        self._of_groups = tuple(bytearray() for _ in range(3))
        self._columns: dict[str, bytearray] = {}
        self._num_rows = 0

    def add(self, part: Part) -> None:
        """Add the groups of a part."""
        num_groups = len(self._of_groups[0]) // np.dtype(np.int64).itemsize
        self.starts.append(num_groups + np.arange(len(part.step) if part.may_repeat else 1))
        self.groups.add(part.group)
        self.prompts.add(part.prompt)
        for buffer, values in zip(self._of_groups, (part.step, part.size, part.first_row), strict=True):
            buffer += np.asarray(values, dtype=np.int64).tobytes()
        self.texts += part.texts
        if part.policies:
            numbers = np.array([self.policies[name] for name in (*part.policies, "")])
            part = replace(part, columns={**part.columns, "policy": numbers[part.columns["policy"]]})
        self._add_columns(part)
        self._num_rows += int(part.size.sum())

    def _add_columns(self, part: Part) -> None:
        """Add the numbers of a part; columns that are equal in every part so far are one buffer."""
        of_type: dict[Any, bytearray] = {}
        for name in (name for name in part.columns if name not in self._columns):
            dtype = COLUMN_TYPES.get(name, np.float64)
            missing = unknown(name, self._num_rows)
            self._columns[name] = of_type.setdefault(dtype, bytearray(missing.tobytes()))
        # a buffer as it was, its next values, and the buffer that they go to
        grown: list[tuple[bytearray, NDArray[Any], bytearray]] = []
        for name, buffer in self._columns.items():
            values = np.asarray(part.column(name), dtype=COLUMN_TYPES.get(name, np.float64))
            candidates = [entry for entry in grown if entry[0] is buffer]
            has_nan = values.dtype.kind == "f"
            target = next(
                (
                    grows
                    for _, other, grows in candidates
                    if other is values or np.array_equal(other, values, equal_nan=has_nan)
                ),
                None,
            )
            if target is None:
                target = bytearray(buffer) if candidates else buffer
                grown.append((buffer, values, target))
            self._columns[name] = target
        for _, values, buffer in grown:
            buffer += values.tobytes()

    def numbers(self) -> tuple[Counts, Counts, Counts]:
        """Steps, sizes and first rows, [P] each."""
        step, size, first_row = (np.frombuffer(buffer, dtype=np.int64) for buffer in self._of_groups)
        return step, size, first_row

    def columns(self, rows: Counts | None) -> dict[str, NDArray[Any]]:
        """The numbers of rollouts, of some rows, or of all without a copy; columns of one buffer are one array, [N]."""
        arrays: dict[int, NDArray[Any]] = {}
        for name, buffer in self._columns.items():
            if id(buffer) not in arrays:
                values = np.frombuffer(buffer, dtype=COLUMN_TYPES.get(name, np.float64))
                arrays[id(buffer)] = values if rows is None else values[rows]
        return {name: arrays[id(buffer)] for name, buffer in self._columns.items()}


def _by_group(step: Counts, first_row: Counts, group: pa.Array, starts: Counts) -> tuple[Counts, Counts]:
    """An order of pieces by group, then first row, [P]; and the number of pieces of each group, [J]."""
    order = np.asarray(np.lexsort((first_row, step)), dtype=np.int64)
    counts = []
    for rows in slices_of_steps(step[order], _NAMES):  # steps share no group
        indices = order[rows]
        steps = step[indices]
        count = np.ones(len(indices), dtype=np.int64)
        piece = np.searchsorted(starts, indices, side="right")
        if np.any((np.diff(steps) == 0) & (np.diff(piece) != 0)):  # else no step is in two pieces
            order_within, count = grouped(steps, group.take(to_indices(indices)))
            order[rows] = indices[order_within]
        counts.append(count)
    return order, np.concatenate(counts)

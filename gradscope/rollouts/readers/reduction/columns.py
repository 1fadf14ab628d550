"""How rows become columns: the keys that a format reads, and one function that interprets their cells.

A format declares no more than that function. It is given the cells of many rows at once, as a decoder or Arrow made
them, and those of single rows that these refuse or whose rollouts are read in full.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import chain, islice, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw, Struct
from numpy.typing import NDArray

from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts import arrays
from gradscope.rollouts.arrays import Counts, Flags, Floats
from gradscope.rollouts.groups import REWARD, status_of
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing import json_text
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record, are_cut_off
from gradscope.rollouts.readers.parsing.tables import Row, entry_in, is_untyped, suffix_of
from gradscope.rollouts.readers.reduction.numbers import (
    NO_STEP,
    arrow_numbers,
    mapped_names,
    numbers_of,
    of_distinct,
    parsed_numbers,
    step_numbers,
)

_AT_ONCE = 1 << 8  # rows that are objects at once, with lists of tokens where a format has some
NamesOf = Callable[[list[tuple[bytes, ...]]], list[str]]
_STRANGE = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')  # characters that a field of a struct cannot have


class Fact(NamedTuple):
    """A fact about the log that rows reveal; its reader makes a sentence of all of them."""

    topic: Literal["other filter", "number of responses", "shape", "identity", "elsewhere"]
    value: str | int


Note = str | Fact
"""A sentence about the log that rows give rise to, or a fact for one."""


def facts_in(notes: Iterable[Note], topic: str) -> list[Any]:
    """The values of all facts about one thing, sorted."""
    return sorted(note.value for note in notes if isinstance(note, Fact) and note.topic == topic)


class Columns(Struct, frozen=True, kw_only=True):
    """The rollouts of some rows as columns, [R] each."""

    row: Counts | None = None
    """The row of each rollout, ascending; None: a rollout a row. Rows without a rollout are skipped."""
    flaws: Sequence[tuple[int, str]] = ()  # rows that are set aside with all their rollouts, and why
    count: Counts | None = None  # number of equal rollouts that each stands for; None: one
    step: Counts  # from 0 on; -1 where the row has none, which sets its rollout aside
    no_step: str = "the step is not a whole number"  # the reason then given
    group: list[str] | pa.Array
    """The id of the group within its step; "" where the row has none, which sets its rollout aside."""
    no_group: str = ""  # the reason then given
    prompts: Callable[[list[int]], list[str]] | None = None
    """The ids of the prompts of some rows, called with the first row of each group; None: the ids of the groups."""
    texts: Callable[[list[int]], list[str]] | None = None
    """The texts of the prompts of some rows, where ``details`` does not have them; None: the log has none."""
    numbers: Mapping[str, NDArray[Any]]
    """``reward``, NaN where the row has none, and each reward function as ``reward/NAME``; any of ``seconds``,
    ``truncated``, ``advantage``, ``num_tokens`` and ``policy``, as ``Part`` has them."""
    policies: Sequence[str] = ()  # names of the policies that ``numbers["policy"]`` refers to by index
    has_all_functions: bool = False  # whether a reward function without a number is listed as missing
    no_reward: Callable[[int], str | None] = lambda _: "the reward is missing"
    """Why a row has no reward; None: the format logs none."""
    notes: Collection[Note] = ()  # notes on the log, even if all rows are set aside
    is_irregular: Flags | None = None  # where ``details`` has to look at the row; None: nowhere
    noted: Mapping[str, Flags] = {}
    """Sentences about the log, each with the rows that give rise to it, [R]."""
    samples: Sequence[str | None] | None = None
    """An id of each rollout within its group, [R]; None: the log has none."""
    completions: Callable[[], Sequence[str]] | None = None
    """The texts of the completions, [R]; None where rewards alone are wanted, or ``details`` says more of rollouts."""
    details: Callable[[int], Mapping[str, Any]] = lambda _: {}
    """Further fields of a row's ``Record``; raises ``UnusableRowError`` where the row holds no rollout."""
    flaw: Callable[[int], str | None] = lambda _: None
    """A reason to count a row as set aside although its rollout has a reward and stays in its group."""

    def prompt_ids(self, rows: list[int]) -> list[str]:
        """The ids of the prompts of some rows."""
        return texts_in(self.group, rows) if self.prompts is None else self.prompts(rows)

    def called_for(self, is_irregular: Flags) -> tuple[Note, ...]:
        """What the rows call for that are regular."""
        is_used = ~is_irregular[self.row_of]
        return (*self.notes, *(sentence for sentence, calls in self.noted.items() if (calls & is_used).any()))

    @property
    def row_of(self) -> Counts:
        """Which row each rollout is of, [R]."""
        return np.arange(len(self.step)) if self.row is None else self.row


class Cells:
    """The cells of rows of a file by column, whether Arrow, a decoder or the row reader made them."""

    def __init__(
        self,
        path: Path,
        size: int,
        keys: Iterable[str],
        column: Callable[[str | None], Any],
        *,
        select: Callable[[str | None, Sequence[int]], list[Any]] | None = None,
    ) -> None:
        """Cells.

        Args:
            path: The file.
            size: Rows, R.
            keys: The keys that rows have, or may have.
            column: A column by its key: an array, or a list with UNSET where a row lacks the key.
            select: The cells of a column in selected rows, where that takes less than the column; None: it does not.
        """
        self.path = path
        self.keys = tuple(keys)
        self.from_text = is_untyped(path)  # whether all cells are text, as those of CSV are
        self.column = cache(column)
        self._select = select
        self._size = size
        self.rows: Sequence[Mapping[str, Any]] = ()  # they themselves, and the ``file:line`` of each, where known
        self.locations: Sequence[str] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]], path: Path, locations: Sequence[str] = ()) -> Cells:
        """Those of rows as they are; ``locations`` where the row reader made them."""
        keys = {key: None for row in rows for key in row}

        def column(key: str | None) -> list[Any]:
            return [UNSET if key is None else row.get(key, UNSET) for row in rows]

        cells = cls(path, len(rows), keys, column)
        cells.rows, cells.locations = rows, locations
        return cells

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch, path: Path) -> Cells:
        """Those of rows that Arrow made."""
        columns: dict[str | None, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        absent = pa.nulls(len(batch))
        return cls(path, len(batch), batch.schema.names, lambda key: columns.get(key, absent))

    def with_entries(self, names: Collection[str]) -> Cells:
        """The same with entries of objects as columns, ``object.entry`` or ``object.object.entry`` each."""

        def column(key: str | None) -> Any:
            if key not in names:
                return self.column(key)
            parent, _, entry = str(key).partition(".")
            objects = self.column(parent)
            if isinstance(objects, pa.Array):
                return arrays.entry_of_structs(objects, entry)
            return [entry_in(cell, entry) for cell in objects]

        return Cells(self.path, len(self), (*self.keys, *names), column) if names else self

    def chosen(self, rows: Sequence[int]) -> Cells:
        """Those of some rows."""
        return Cells(self.path, len(rows), self.keys, lambda key: self.selected(key, rows))

    def elements(self, sizes: Sequence[int]) -> Cells:
        """The elements of lists, one after the other, so many a row; none of a cell that is no list of as many."""

        def column(key: str | None) -> list[Any]:
            cells = zip(self.cells(key), sizes, strict=True)
            lists = (cell if type(cell) is list and len(cell) == size else [UNSET] * size for cell, size in cells)
            return list(chain.from_iterable(lists))

        return Cells(self.path, sum(sizes), self.keys, column)

    def changed(
        self,
        name: str,
        change: Callable[[Sequence[Any]], list[Any]],
        in_arrow: Callable[[pa.Array], pa.Array | None] = lambda _: None,
    ) -> Cells:
        """The same with a column in place of one, made of its cells, some of which may be JSON text or missing.

        ``in_arrow`` makes it of an array, where it can.
        """

        def changed(key: str | None, cells: Any) -> Any:
            if key != name or not isinstance(cells, pa.Array):
                return change(cells) if key == name else cells
            made = in_arrow(cells)
            return change(arrays.to_cells(cells)) if made is None else made

        return Cells(
            self.path,
            len(self),
            self.keys,
            lambda key: changed(key, self.column(key)),
            select=lambda key, rows: changed(key, self.selected(key, rows)),
        )

    def __len__(self) -> int:
        return self._size

    def cells(self, key: str | None, rows: Sequence[int] | None = None) -> list[Any]:
        """The cells of some rows, or all, as plain values; None where a row has none."""
        cells = self.column(key) if rows is None else self.selected(key, rows)
        if isinstance(cells, pa.Array):
            return arrays.to_cells(cells)
        return list(cells) if _MADE_LATER.isdisjoint(map(type, cells)) else list(map(parse.plain_cell, cells))

    def selected(self, key: str | None, rows: Sequence[int]) -> Any:
        """A column in selected rows."""
        if self._select is not None:
            return self._select(key, rows)
        column = self.column(key)
        if isinstance(column, pa.Array):
            return column.take(arrays.to_indices(np.array(rows, dtype=np.int64)))
        return list(map(column.__getitem__, rows))

    def cell(self, key: str | None, row: int) -> Any:
        """The cell of a row; None where it has none."""
        column = self.column(key) if self._select is None else None
        return parse.plain_cell(column[row]) if isinstance(column, list) else self.cells(key, [row])[0]

    def no_reward(self, key: str, row: int) -> str:
        """Why a cell is no reward."""
        cell = self.column(key)[row]
        return str(
            parse.parse_reward(parse.ABSENT if cell is UNSET else parse.plain_cell(cell), from_text=self.from_text)
        )

    def numbers(self, key: str | None) -> Floats:
        """Rewards by ``parse_reward``; NaN where one is none, [R]."""
        column = self.column(key)
        if isinstance(column, pa.Array):
            return arrow_numbers(column, from_text=self.from_text)
        return parsed_numbers(column, from_text=True) if self.from_text else numbers_of(column)

    def steps(self, key: str | None) -> Counts:
        """Steps or indices by ``step_number``; -1 where one is none, [R]."""
        column = self.column(key)
        return of_distinct(column, step_numbers, NO_STEP) if isinstance(column, pa.Array) else step_numbers(column)

    def truncated(self, key: str) -> Floats:
        """Whether completions were cut off, by the column of how they ended, [R]; NaN where that is not known."""
        column, ends = self.column(key), partial(are_cut_off, name=key)
        if isinstance(column, pa.Array):
            return of_distinct(column, ends, math.nan)
        return ends(column if {str}.issuperset(map(type, column)) else self.cells(key))

    def not_finite(self, key: str | None) -> Flags | None:
        """Where a cell is a number but not a finite one, [R]; None where no decoder lets such a number pass."""
        column = self.column(key)
        if not isinstance(column, pa.Array) or not pa.types.is_floating(column.type):
            return None
        return np.asarray(~np.isfinite(arrays.to_filled(column.cast(pa.float64()), 0.0)))

    def flaw_of_advantage(self, key: str | None, row: int) -> str | None:
        """A ``Columns.flaw`` for the advantage of a row or of its tokens."""
        return BROKEN_ADVANTAGE if parse.is_not_finite(self.cell(key, row)) else None

    def names(self, key: str | None) -> list[str] | pa.Array:
        """Cells as text; "" for null, [R]."""
        column = self.column(key)
        if isinstance(column, pa.Array):
            if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type):
                column = column.dictionary_decode()
            is_text = pa.types.is_string(column.type) and not column.null_count
            return column if is_text else mapped_names(column, parse.text_of)
        if set(map(type, column)) == {str}:
            return list(column)
        return [
            cell if type(cell) is str else str(cell) if type(cell) is int else parse.text_of(parse.plain_cell(cell))
            for cell in column
        ]

    def prompt_ids(self, key: str | None) -> list[str] | pa.Array:
        """Ids of prompts by their texts; "" for null and for an empty text, [R]."""
        column = self.column(key)
        if isinstance(column, pa.Array):
            return mapped_names(column, parse.prompt_text_id)
        if Raw in set(map(type, column)):
            return names_of_runs([column], _prompt_ids)
        keys: list[Any] = column
        if not {str}.issuperset(map(type, column)):
            try:
                texts = map(msgspec.json.encode, column)  # which writes NaN as null
                keys = [repr(cell) if b"null" in text else text for text, cell in zip(texts, column, strict=True)]
            except (TypeError, UnicodeEncodeError):  # a missing cell, half a surrogate pair
                keys = list(range(len(column)))
        ids = {
            key: "" if cell in (None, "", UNSET) else parse.prompt_text_id(cell)
            for key, cell in dict(zip(keys, column, strict=True)).items()
        }
        return list(map(ids.__getitem__, keys))


def _prompt_ids(rows: Sequence[tuple[bytes, ...]]) -> list[str]:
    texts = [row for row in rows if row[0].startswith(b'"') and row[0] != b'""']
    ids = dict(zip(texts, json_text.digests_of(texts), strict=True)) | {(b"null",): "", (b'""',): ""}
    return [ids[row] if row in ids else parse.prompt_json_id(row[0]) for row in rows]


def names_of_runs(columns: Sequence[Sequence[Any]], names_of: NamesOf) -> list[str]:
    """:func:`names_of_cells` of a run of equal rows once, as those of a group mostly stand side by side, [R]."""
    starts = np.flatnonzero(np.logical_or.reduce(list(map(arrays.run_starts, columns))))
    names = names_of_cells([[column[start] for start in starts.tolist()] for column in columns], names_of)
    lengths = np.diff(starts, append=len(columns[0])).tolist()
    return list(chain.from_iterable(map(repeat, names, lengths)))


def names_of_cells(columns: Sequence[Sequence[Any]], names_of: NamesOf) -> list[str]:
    """Names of rows by the JSON of their cells, [R]; ``names_of`` makes those of different rows."""
    rows = list(zip(*map(json_text.jsons_of, columns), strict=True))
    different = list(dict.fromkeys(rows))
    names = dict(zip(different, names_of(different), strict=True))
    return list(map(names.__getitem__, rows))


def texts_in(names: list[str] | pa.Array, rows: Sequence[int] | None = None) -> list[Any]:
    """Names of some rows, or all, as text."""
    if isinstance(names, pa.Array):
        return arrays.to_texts(names if rows is None else names.take(arrays.to_indices(np.array(rows, dtype=np.int64))))
    return names if rows is None else [names[row] for row in rows]


_MADE_LATER = {Raw, msgspec.UnsetType}


class LineColumns(Struct, frozen=True, kw_only=True, dict=True):
    """How lines become columns."""

    row: Any  # the type that lines are decoded to: a struct of the keys that are read
    to_columns: Callable[[Sequence[Any], Path], Columns]  # the columns of rows of a file, at least one
    looks_at_path: bool = False  # whether their meaning depends on the name of the file
    may_be_nan: tuple[str, ...] = ()  # fields of numbers, or objects of numbers, of which NaN says as little as null

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """The decoder of such lines."""
        return msgspec.json.Decoder(self.row)


def line_columns(
    to_columns: Callable[[Cells], Columns],
    keys: Iterable[str],
    raw: Iterable[str] = (),
    *,
    looks_at_path: bool = False,
    is_complete: bool = False,
    may_be_nan: Collection[str] = (),
) -> LineColumns | None:
    """How lines become columns.

    Args:
        to_columns: Interprets their cells.
        keys: The keys that are read.
        raw: Further keys, whose cells stay JSON until they are needed.
        looks_at_path: Whether the meaning of cells depends on the name of the file.
        is_complete: Whether a row with any other key is left to the row reader.
        may_be_nan: Keys of numbers, or objects of numbers, of which NaN says as little as null.

    Returns:
        Their declaration; None where a key cannot be a field of a decoder.
    """
    kinds = dict.fromkeys(raw, Raw | msgspec.UnsetType) | dict.fromkeys(keys, Any)
    if any(_STRANGE.search(key) for key in kinds):
        return None
    fields = [(f"x{index}", kind, UNSET) for index, kind in enumerate(kinds.values())]
    names = {name: key for (name, *_), key in zip(fields, kinds, strict=True)}
    row = msgspec.defstruct("Row", fields, rename=names, gc=False, forbid_unknown_fields=is_complete)
    getters: dict[str | None, Callable[[Any], Any]] = {key: attrgetter(name) for name, key in names.items()}

    def columns_of_rows(rows: Sequence[Any], path: Path) -> Columns:
        # A column when it is asked for: of most formats several are needed of a few rows or of none.
        def cells_of(key: str | None, chosen: Sequence[Any]) -> list[Any]:
            return list(map(getters[key], chosen)) if key in getters else [UNSET] * len(chosen)

        return to_columns(
            Cells(
                path,
                len(rows),
                kinds,
                column=lambda key: cells_of(key, rows),
                select=lambda key, numbers: cells_of(key, [rows[index] for index in numbers]),
            )
        )

    without_nan = tuple(name for name, key in names.items() if key in may_be_nan)
    return LineColumns(row=row, to_columns=columns_of_rows, looks_at_path=looks_at_path, may_be_nan=without_nan)


class ListColumns(Struct, frozen=True, kw_only=True):
    """How the rows of a JSON document become columns; with an irregular one, the document goes to the row reader."""

    lines: LineColumns  # of the rows as lines


class TableColumns(Struct, frozen=True, kw_only=True):
    """How the rows of a Parquet or CSV file become columns."""

    names: tuple[str, ...] | None
    """The columns that are read, where the file has them; None: all of a Parquet file, as cells of rows."""
    texts: tuple[str, ...] = ()  # further ones, of long texts, which are compared and never copied
    to_columns: Callable[[Cells], Columns]  # interprets their cells
    narrower: Callable[[Path], TableColumns | None] | None = None
    """How a Parquet file is read whose metadata shows that fewer columns say the same, unless one row is irregular."""


FileColumns = LineColumns | ListColumns | TableColumns | None
"""How a file becomes columns; None: by the row reader alone."""


def columns_of_whole_rows(
    to_columns: Callable[[Cells], Columns],
    narrower: Callable[[Path], TableColumns | None] | None = None,
    *,
    looks_at_path: bool,
) -> Callable[[Path], FileColumns]:
    """How each file becomes columns where all cells of a row count; ``narrower`` as in :class:`TableColumns`."""
    lines = LineColumns(
        row=dict[str, Any],
        to_columns=lambda *arguments: to_columns(Cells.of_rows(*arguments)),
        looks_at_path=looks_at_path,
    )
    table = TableColumns(names=None, to_columns=to_columns, narrower=narrower)
    by_suffix = {".json": ListColumns(lines=lines), ".csv": None, ".tsv": None, ".parquet": table, ".arrow": table}
    return lambda file: by_suffix.get(suffix_of(file) or "", lines)


def records_in(
    to_columns: Callable[[Cells], Columns],
    path: Path,
    rows: Iterable[Row],
    quarantine: QuarantineLog,
    note: Callable[[Note], object] = lambda _: None,
) -> Iterator[tuple[int, Record]]:
    """The rollouts of rows of the row reader, each with the index of its row."""
    numbered = iter(rows)
    first = 0
    while batch := list(islice(numbered, _AT_ONCE)):
        locations = [location for location, _ in batch]
        columns = to_columns(Cells.of_rows([cells for _, cells in batch], path, locations))
        row_of, lines = columns.row_of.tolist(), quarantine.for_lines()
        for of_rows in columns.notes:
            note(of_rows)
        for row, why in columns.flaws:
            lines.add(why, locations[row])
        flawed = {row for row, _ in columns.flaws}  # of which other prompts may be read
        held = {(row, group if row in flawed else None) for row, group in zip(row_of, columns.group, strict=True)}
        num_rollouts = len(row_of) if columns.count is None else int(columns.count.sum())
        quarantine.count_rollouts(num_rollouts, num_lines=len(held))
        for rollout, record in _records(columns, [locations[row] for row in row_of], quarantine):
            yield first + row_of[rollout], record
            for sentence, calls in columns.noted.items():
                if calls[rollout]:
                    note(sentence)
        first += len(batch)


def _records(columns: Columns, locations: Sequence[str], quarantine: QuarantineLog) -> Iterator[tuple[int, Record]]:
    steps, groups = columns.step.tolist(), texts_in(columns.group)
    counts = [1] * len(steps) if columns.count is None else columns.count.tolist()
    named = [index for index, group in enumerate(groups) if group and steps[index] >= 0]
    prompts = dict(zip(named, columns.prompt_ids(named), strict=True)) if named else {}
    numbers = {
        name: [number if math.isfinite(number) else None for number in values.tolist()]
        for name, values in columns.numbers.items()
        if values.dtype == np.float64
    }
    functions = {name.removeprefix(REWARD): values for name, values in numbers.items() if name.startswith(REWARD)}
    texts: dict[int, str] = {}
    policies = (*columns.policies, None) if columns.policies else ()  # the last is that of ``UNKNOWN``
    for index, location in enumerate(locations):
        try:
            if index not in prompts:
                raise UnusableRowError(columns.no_step if steps[index] < 0 else columns.no_group)
            details = columns.details(index)
        except UnusableRowError as error:
            quarantine.add(str(error), location)
            continue
        why = columns.no_reward(index) if numbers["reward"][index] is None else columns.flaw(index)
        if why is not None:
            quarantine.add(why, location, counts[index])
        rewards = {name: values[index] for name, values in functions.items()}
        if not columns.has_all_functions:
            rewards = {name: reward for name, reward in rewards.items() if reward is not None}
        fields: dict[str, Any] = {
            "reward": numbers["reward"][index],
            "rewards": rewards,
            "sample_id": None if columns.samples is None else columns.samples[index],
            **{name: numbers[name][index] for name in ("advantage", "seconds") if name in numbers},
            **({"status": status_of(numbers["truncated"][index])} if "truncated" in numbers else {}),
            "policy": policies[columns.numbers["policy"][index]] if policies else None,
            **details,
        }
        if "prompt" not in fields:
            if columns.texts is not None and not texts:
                texts = dict(zip(named, columns.texts(named), strict=True))
            fields["prompt"] = texts.get(index, "")
        record = Record(
            step=steps[index],
            group=groups[index],
            prompt_id=prompts[index],
            location=location,
            count=counts[index],
            **fields,
        )
        yield index, record

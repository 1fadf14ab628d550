"""miles' trajectories: a row a sample that kept its conversation, and its tokens in a Parquet file beside it.

The dump of ``torch.save`` in ``rollout_data`` holds every sample and is read as slime's where it is there. Of tokens,
a row a sequence, objects are made or no more than their lengths. Legend: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_filled
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    NOT_ALIGNED,
    NOT_IDS,
    NOTHING_SAMPLED,
    completion_of,
    digest,
    whole_number,
)
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import SEVERAL, QuarantineLog, UnusableRowError, hidden_by
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.parsing.tables import Row, read_parquet
from gradscope.rollouts.readers.slime.rollouts import (
    in_one_go,
    logged_tokens,
    num_logged_tokens,
    sample_record,
    survey_rewards,
)

_INDEX = "sample_index"
_LISTS = ("tokens", "loss_mask", "rollout_log_probs")


@dataclass(frozen=True)
class TokenColumns:
    """The tokens of the samples of one rollout."""

    table: pa.Table
    """[R]."""

    @classmethod
    def beside(cls, file: Path) -> TokenColumns | None:
        """Those of a file of trajectories; None where it has none."""
        folder = file.resolve().parent.parent / "dashboard_columns"
        path = folder / f"rollout_{file.stem}.parquet"
        return cls(read_parquet(path)) if path.is_file() else None

    @cached_property
    def places(self) -> dict[int | None, list[int]]:
        """Sample index -> its rows, several for a sample of several sequences; None: of rows without one."""
        found: dict[int | None, list[int]] = {}
        names = self.table.column_names
        indices = self.table[_INDEX].to_pylist() if _INDEX in names else [None] * self.table.num_rows
        for at, index in enumerate(map(whole_number, indices)):
            found.setdefault(index, []).append(at)
        return found

    def sequences(self, places: Sequence[int]) -> tuple[Tokens, ...]:
        """The sequences in some rows.

        Returns:
            The tokens of each.

        Raises:
            UnusableRowError: One of them has none, or contradicts itself.
        """
        return tuple(logged_tokens(self._rows[at]) for at in places)

    def num_tokens(self, places: Sequence[int]) -> int:
        """How long the sequences in some rows are, without a copy of them.

        Returns:
            The tokens of all their completions.

        Raises:
            UnusableRowError: Likewise.
        """
        lengths = [self._lengths[at] for at in places]
        reasons = [length for length in lengths if isinstance(length, str)]
        if reasons:
            raise UnusableRowError(reasons[0])
        return sum(length for length in lengths if isinstance(length, int))

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return list(self.table.to_pylist())

    @cached_property
    def _lengths(self) -> list[int | str]:
        """The number of tokens of each row's completion, or why they cannot be used."""
        if not self._is_plain():
            return list(map(_length_of, self._rows))
        size, length = _sizes(self.table["tokens"]), _numbers(self.table["response_length"])
        problem = np.where((size < 0) | (length <= 0) | (length > size), NOT_IDS, "").astype(object)
        first = np.zeros(len(size), dtype=np.int64)
        for name in _LISTS[1:]:
            if name in self.table.column_names:
                of_list = _sizes(self.table[name])
                problem[(problem == "") & (of_list >= 0) & (of_list != length)] = NOT_ALIGNED
        if "loss_mask" in self.table.column_names:
            masked = _sizes(self.table["loss_mask"]) >= 0
            first[masked] = _first_set(self.table["loss_mask"])[masked]
            problem[(problem == "") & masked & (first >= length)] = NOTHING_SAMPLED
        counted = (length - first).tolist()
        return [reason or number for reason, number in zip(problem.tolist(), counted, strict=True)]

    def _is_plain(self) -> bool:
        """Whether columns have the types that miles gives them, so that numbers are numbers."""
        types = dict(zip(self.table.column_names, self.table.schema.types, strict=False))
        lists = [types[name] for name in _LISTS if name in types]
        return (
            len(types) == len(self.table.column_names)
            and {"tokens", "response_length"} <= types.keys()
            and pa.types.is_signed_integer(types["response_length"])
            and all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in lists)
            and pa.types.is_integer(types["tokens"].value_type)
            and ("loss_mask" not in types or _is_flag(types["loss_mask"].value_type))
            and not self.table["tokens"].combine_chunks().flatten().null_count
        )


def _length_of(row: dict[str, Any]) -> int | str:
    try:
        return num_logged_tokens(row)
    except UnusableRowError as error:
        return str(error)


def _is_flag(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Whole numbers, -1 where there is none, [R]."""
    return np.asarray(to_filled(column.cast(pa.int64()), -1))


def _sizes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """How many elements each list has, -1 where there is none, [R]."""
    import pyarrow.compute as pc  # 20 ms that no other log needs

    return _numbers(pc.list_value_length(column))


def _first_set(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """The place of the first element of each list that is set; beyond its end where none is, [R]."""
    size = np.maximum(_sizes(column), 0)
    start = np.cumsum(size) - size
    flags = to_filled(column.combine_chunks().flatten().cast(pa.bool_()).cast(pa.int8()), 0)
    at = np.append(np.flatnonzero(flags), size.sum())
    return np.asarray(at[np.searchsorted(at, start)] - start)


_Found = TypeVar("_Found")
_NO_COLUMNS = (
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)
_OF_ALL_LEAVES = ("group_index", "reward", "status")
"""What all sequences of a sample share."""
_UNTOLD = "the sample kept no conversation, so that neither its group nor its reward is known"


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each with the places of its sequences in the Parquet file beside it."""
    columns = TokenColumns.beside(file)
    places = {} if columns is None else columns.places
    samples: dict[Any, list[Row]] = {}
    for location, cells in read_jsonl(file, quarantine):
        index = whole_number(cells.get("sample_index"))
        samples.setdefault(location if index is None else index, []).append((location, cells))
    for index, rows in samples.items():
        are_leaves = len(rows) == 1 or len({digest(*map(cells.get, _OF_ALL_LEAVES)) for _, cells in rows}) == 1
        beside = {"columns": columns, "places": places.get(index, []), "num_leaves": len(rows) if are_leaves else 1}
        for location, cells in rows[-1:] if are_leaves else rows:
            yield location, {"rollout_id": file.stem, "sample": cells, **beside}
    for index in places.keys() - samples.keys():
        quarantine.add(_UNTOLD, f"{file}:{index}")


def _records(row: LogRow, counted: Callable[[Any], Any]) -> Iterator[Record]:
    sample = row.cells["sample"]
    reward = counted(sample.get("reward", ABSENT))
    counts = row.reading.counts_tokens
    sequences = None if counts else _with_all_leaves(row, TokenColumns.sequences)
    yield sample_record(
        row,
        reward,
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1] if sequences else (),
        num_tokens=_with_all_leaves(row, TokenColumns.num_tokens) if counts else None,
        completion=completion_of(sample.get("messages")),
        index=sample.get("sample_index"),
    )


def _with_all_leaves(row: LogRow, look: Callable[[TokenColumns, Sequence[int]], _Found]) -> _Found | None:
    """What a look at a sample's tokens finds.

    Returns:
        What it finds; None where tokens are missing, or contradict themselves: the sample then stays in its group.
    """
    columns, places, num_leaves = (row.cells[name] for name in ("columns", "places", "num_leaves"))
    found = None
    if columns is None:
        row.reading.noted.add(_NO_COLUMNS)
    elif places and len(places) >= num_leaves:
        try:
            found = look(columns, places)
        except UnusableRowError as error:
            row.reading.quarantine.add(str(error), row.location)
    if num_leaves > 1 or (found is not None and len(places) > 1):
        row.reading.noted.add(SEVERAL)
    return found


FORMAT = RowFormat(
    name="miles",
    looks_for="trajectory/<step>.jsonl with sample_index and messages (miles)",
    title="miles trajectories",
    patterns=("trajectory/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("sample_index", "group_index", "reward", "messages"),
    rows_of=_rows_of,
    survey=survey_rewards,
    records=_records,
    columns=in_one_go,
    inferred=(SEVERAL,),
    missing=(
        _NO_COLUMNS,
        hidden_by("miles' dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),
    ),
    if_noted=frozenset({_NO_COLUMNS, SEVERAL}),
)

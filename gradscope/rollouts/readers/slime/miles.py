"""miles' trajectories: a row a sample that kept its conversation, and its tokens in a Parquet file beside it.

The dump of ``torch.save`` in ``rollout_data`` holds every sample and is read as slime's where it is there.
Legend: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
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
    sample_record,
    survey_rewards,
)

_INDEX = "sample_index"


@dataclass(frozen=True)
class TokenColumns:
    """The tokens of the samples of one rollout."""

    table: pa.Table  # [R]

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
        """The tokens of the sequences in some rows; raises ``UnusableRowError`` where one contradicts itself."""
        return tuple(logged_tokens(self.table.slice(at, 1).to_pylist()[0]) for at in places)


_NO_COLUMNS = (
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)
_OF_ALL_LEAVES = ("group_index", "reward", "status")  # what all sequences of a sample share
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
    sequences = _with_all_leaves(row)
    yield sample_record(
        row,
        reward,
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1] if sequences else (),
        completion=completion_of(sample.get("messages")),
        index=sample.get("sample_index"),
    )


def _with_all_leaves(row: LogRow) -> tuple[Tokens, ...] | None:
    """A sample's sequences; None where one is missing or contradicts itself: the sample then stays in its group."""
    columns, places, num_leaves = (row.cells[name] for name in ("columns", "places", "num_leaves"))
    found = None
    if columns is None:
        row.reading.noted.add(_NO_COLUMNS)
    elif places and len(places) >= num_leaves:
        try:
            found = columns.sequences(places)
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

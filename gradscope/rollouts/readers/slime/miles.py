"""miles' trajectories: a row for each sample with a logged conversation, and tokens in a separate Parquet file.

The dump of ``torch.save`` in ``rollout_data`` holds every sample and is read as slime's where it exists.
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
from gradscope.rollouts.readers.parsing.cells import ABSENT, completion_of, digest, whole_number
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import SEVERAL, QuarantineLog, UnusableRowError, hidden_by
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.parsing.tables import Row, read_parquet
from gradscope.rollouts.readers.slime.rollouts import in_one_go, logged_tokens, sample_record, survey_rewards

_INDEX = "sample_index"


@dataclass(frozen=True)
class TokenColumns:
    """The tokens of the samples of one rollout."""

    table: pa.Table  # [R]

    @classmethod
    def of_file(cls, file: Path) -> TokenColumns | None:
        """The tokens for a file of trajectories; None where it has none."""
        folder = file.resolve().parent.parent / "dashboard_columns"
        path = folder / f"rollout_{file.stem}.parquet"
        return cls(read_parquet(path)) if path.is_file() else None

    @cached_property
    def rows_by_sample(self) -> dict[int | None, list[int]]:
        """Sample index -> its rows, several for a sample of several sequences; None -> rows without an index."""
        rows: dict[int | None, list[int]] = {}
        names = self.table.column_names
        indices = self.table[_INDEX].to_pylist() if _INDEX in names else [None] * self.table.num_rows
        for at, index in enumerate(map(whole_number, indices)):
            rows.setdefault(index, []).append(at)
        return rows

    def sequences(self, rows: Sequence[int]) -> tuple[Tokens, ...]:
        """The tokens of the sequences in these rows; raises ``UnusableRowError`` where one contradicts itself."""
        return tuple(logged_tokens(self.table.slice(at, 1).to_pylist()[0]) for at in rows)


_NO_COLUMNS = (
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)
_OF_ALL_LEAVES = ("group_index", "reward", "status")  # the same for all sequences of a sample
_NOT_LOGGED = "the sample kept no conversation, so that neither its group nor its reward is known"


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each with the rows of its sequences in the Parquet file."""
    columns = TokenColumns.of_file(file)
    rows_by_sample = {} if columns is None else columns.rows_by_sample
    samples: dict[Any, list[Row]] = {}
    for location, cells in read_jsonl(file, quarantine):
        index = whole_number(cells.get("sample_index"))
        samples.setdefault(location if index is None else index, []).append((location, cells))
    for index, rows in samples.items():
        are_leaves = len(rows) == 1 or len({digest(*map(cells.get, _OF_ALL_LEAVES)) for _, cells in rows}) == 1
        shared = {"rollout_id": file.stem, "columns": columns, "token_rows": rows_by_sample.get(index, [])}
        num_leaves = len(rows) if are_leaves else 1
        for location, cells in rows[-1:] if are_leaves else rows:
            yield location, {**shared, "sample": cells, "num_leaves": num_leaves}
    for index in rows_by_sample.keys() - samples.keys():
        quarantine.add(_NOT_LOGGED, f"{file}:{index}")


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
    columns, token_rows, num_leaves = (row.cells[name] for name in ("columns", "token_rows", "num_leaves"))
    sequences = None
    if columns is None:
        row.reading.noted.add(_NO_COLUMNS)
    elif token_rows and len(token_rows) >= num_leaves:
        try:
            sequences = columns.sequences(token_rows)
        except UnusableRowError as error:
            row.reading.quarantine.add(str(error), row.location)
    if num_leaves > 1 or (sequences is not None and len(token_rows) > 1):
        row.reading.noted.add(SEVERAL)
    return sequences


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

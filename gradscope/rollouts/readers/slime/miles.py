"""miles' trajectories: a row a sample that kept its conversation, and its tokens in a Parquet file beside it.

The dump of ``torch.save`` in ``rollout_data`` holds every sample and is read as slime's where it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import SEVERAL, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import digest
from gradscope.rollouts.readers.parsing.tables import Row, read_parquet
from gradscope.rollouts.readers.slime.sample import logged_tokens, sample_record, survey_rewards
from gradscope.rollouts.types import Tokens

_NO_COLUMNS = (
    "Some rollouts have no dashboard_columns/rollout_<step>.parquet beside them (pip install miles[dashboard] writes "
    "it), and so no tokens."
)
_OF_ALL_LEAVES = ("group_index", "reward", "status")
"""What all sequences of a sample share."""
_UNTOLD = "the sample kept no conversation, so that neither its group nor its reward is known"


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each with what the Parquet file beside it holds of it."""
    columns = _columns(file)
    samples: dict[Any, list[Row]] = {}
    for location, cells in read_jsonl(file, quarantine):
        index = whole_number(cells.get("sample_index"))
        samples.setdefault(location if index is None else index, []).append((location, cells))
    for index, rows in samples.items():
        found = None if columns is None else columns.get(index, [])
        are_leaves = len({digest(*map(cells.get, _OF_ALL_LEAVES)) for _, cells in rows}) == 1
        for location, cells in rows[-1:] if are_leaves else rows:
            leaves = len(rows) if are_leaves else 1
            yield location, {"rollout_id": file.stem, "sample": cells, "columns": found, "num_leaves": leaves}
    for index in (columns or {}).keys() - samples.keys():
        quarantine.add(_UNTOLD, f"{file}:{index}")


def _columns(file: Path) -> dict[Any, list[dict[str, Any]]] | None:
    """Sample index -> its rows in the Parquet file, several for one of several sequences; None where there is none."""
    beside = file.resolve().parent.parent / "dashboard_columns" / f"rollout_{file.stem}.parquet"
    if not beside.is_file():
        return None
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in read_parquet(beside).to_pylist():
        found.setdefault(row.get("sample_index"), []).append(row)
    return found


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    sample, columns = row.cells["sample"], row.cells["columns"]
    sequences = _sequences(columns or (), row)
    has_several = max(row.cells["num_leaves"], len(sequences)) > 1
    row.reading.noted.update({_NO_COLUMNS} if columns is None else set(), {SEVERAL} if has_several else set())
    yield sample_record(
        row,
        part,
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1],
        completion=cut_conversation(sample.get("messages")).completion,
        index=sample.get("sample_index"),
    )


def _sequences(columns: Sequence[Mapping[str, Any]], row: LogRow) -> tuple[Tokens, ...]:
    """A sample's tokens, nothing where some are missing; where they contradict themselves it stays in its group."""
    if len(columns) < row.cells["num_leaves"]:
        return ()
    try:
        return tuple(map(logged_tokens, columns))
    except UnusableRowError as error:
        row.reading.quarantine.add(str(error), row.location)
        return ()


FORMAT = RowFormat(
    name="miles",
    looks_for="trajectory/<step>.jsonl with sample_index and messages (miles)",
    title="miles trajectories",
    patterns=("trajectory/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("sample_index", "group_index", "reward", "messages"),
    rows_of=_rows_of,
    survey=survey_rewards,
    records=_records,
    inferred=(SEVERAL,),
    missing=(
        _NO_COLUMNS,
        hidden_by("miles' dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),
    ),
    if_noted=frozenset({_NO_COLUMNS, SEVERAL}),
)

"""miles' trajectories: a row a sample that kept its conversation, and its tokens in a Parquet file beside it.

The dump of ``torch.save`` in ``rollout_data`` holds every sample and is read as slime's where it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.conversations import completion_of
from gradscope.rollouts.readers.parsing.counted import SEVERAL, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import digest
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.slime.sample import sample_record, survey_rewards
from gradscope.rollouts.readers.slime.table import Told, table_of_samples
from gradscope.rollouts.readers.slime.token_columns import TokenColumns
from gradscope.rollouts.reward_table import UNKNOWN

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


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    sequences = _with_all_leaves(row, TokenColumns.sequences) or ()
    sample = row.cells["sample"]
    yield sample_record(
        row,
        part,
        tokens=sequences[-1] if sequences else None,
        earlier=sequences[:-1],
        completion=completion_of(sample.get("messages")),
        index=sample.get("sample_index"),
    )


def _told(row: LogRow) -> Told:
    num_tokens = _with_all_leaves(row, TokenColumns.num_tokens)
    sample = row.cells["sample"]
    return Told(
        index=sample.get("sample_index"),
        completion=completion_of(sample.get("messages")),
        num_tokens=UNKNOWN if num_tokens is None else num_tokens,
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
    table_of_rows=partial(table_of_samples, told_by=_told),
    inferred=(SEVERAL,),
    missing=(
        _NO_COLUMNS,
        hidden_by("miles' dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),
    ),
    if_noted=frozenset({_NO_COLUMNS, SEVERAL}),
)

"""AReaL's dumps of trajectories: a folder for each version of the weights, a file a task, a row a sample."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import required_whole, whole_number
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.trainers.areal_columns import areal_columns

_BY_TASK = (
    "Samples of one task are a group, at the version of the weights that finished it (tail_version); asynchronous "
    "training may use it at a later step, which lags leave out, or not at all where should_accept_fn rejects it."
)
_STALE = "Some samples were begun by an earlier version of the weights than finished them (head_version)."
_EMPTY = "AReaL writes no sample without completion tokens, so that such a sample is missing from its group."


def _records(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    step = required_whole(cells.get("tail_version"), "tail_version")
    if text_of(cells.get("task_id")) == "":
        raise UnusableRowError("task_id is missing")
    begun = whole_number(cells.get("head_version"))
    if begun not in (None, step):
        row.reading.noted.add(_STALE)
    index = whole_number(cells.get("sample_idx"))
    yield Record(
        step=step,
        group=text_of(cells["task_id"]),
        prompt_id=digest(cells.get("prompt")),
        prompt=text_of(cells.get("prompt")),
        completion=text_of(cells.get("completion")),
        reward=row.reward(cells.get("reward", ABSENT)),
        sample_id=None if index is None else str(index),
        location=row.location,
        policy_versions=None if begun is None or not 0 <= begun <= step else (begun, step),
    )


FORMAT = RowFormat(
    name="areal",
    looks_for="rollout/<version>/<task>.jsonl with task_id and tail_version (AReaL)",
    title="AReaL trajectories",
    patterns=("rollout/[0-9]*/*.jsonl", "[0-9]*/*.jsonl", "*.jsonl"),
    recognizes_file=has_keys("task_id", "sample_idx", "tail_version", "reward"),
    records=_records,
    columns=lambda reading: areal_columns(lambda: reading.noted.add(_STALE)),
    inferred=(_BY_TASK, _STALE),
    missing=(_EMPTY, TEXT_ONLY),
    if_noted=frozenset({_STALE}),
)

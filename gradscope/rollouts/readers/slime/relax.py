"""Relax's results of rollouts: a row a sample, a file a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.slime.sample import sample_record, survey_rewards


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, cells in read_jsonl(file, quarantine):
        yield location, {"rollout_id": cells.get("rollout_id"), "sample": cells}


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    sample = row.cells["sample"]
    completion, index = text_of(sample.get("response")), sample.get("sample_index")
    yield sample_record(row, part, tokens=None, completion=completion, index=index)


FORMAT = RowFormat(
    name="relax",
    looks_for="rollout_result/train/<step>.jsonl with rollout_id and group_index (Relax)",
    title="Relax rollouts",
    patterns=("rollout_result/train/[0-9]*.jsonl", "train/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("rollout_id", "group_index", "sample_index", "response", "reward"),
    rows_of=_rows_of,
    survey=survey_rewards,
    records=_records,
    missing=(
        hidden_by("Relax's dynamic sampling drops groups of equal rewards"),
        TEXT_ONLY,
    ),
    takes=frozenset({"reward_column"}),
)

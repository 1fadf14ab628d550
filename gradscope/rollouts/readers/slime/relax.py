"""Relax's results of rollouts: a row a sample, a file a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import numbers_in
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.slime.relax_columns import relax_columns
from gradscope.rollouts.readers.slime.sample import sample_record, survey_rewards


def _of_sample(row: LogRow) -> LogRow:
    """A row as slime's samples are read."""
    return replace(row, cells={"rollout_id": row.cells.get("rollout_id"), "sample": row.cells})


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, str | None]:
    return survey_rewards(list(map(_of_sample, rows)), reading)


def _records(
    row: LogRow, part: str | None, known: Set[str] = frozenset(), late: set[str] | None = None
) -> Iterator[Record]:
    if late is not None:
        late.update(numbers_in(row.cells.get("reward")).keys() - known)
    completion, index = text_of(row.cells.get("response")), row.cells.get("sample_index")
    yield sample_record(_of_sample(row), part, tokens=None, completion=completion, index=index)


FORMAT = RowFormat(
    name="relax",
    looks_for="rollout_result/train/<step>.jsonl with rollout_id and group_index (Relax)",
    title="Relax rollouts",
    patterns=("rollout_result/train/[0-9]*.jsonl", "train/[0-9]*.jsonl", "[0-9]*.jsonl"),
    recognizes_file=has_keys("rollout_id", "group_index", "sample_index", "response", "reward"),
    rows_of=read_jsonl,
    survey=_survey,
    records=_records,
    columns=relax_columns,
    missing=(
        hidden_by("Relax's dynamic sampling drops groups of equal rewards"),
        TEXT_ONLY,
    ),
    takes=frozenset({"reward_column"}),
)

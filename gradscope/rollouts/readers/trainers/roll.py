"""ROLL's dumps of rollouts: one line a step, every value a list with an element a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import ABSENT, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.trainers.roll_table import (
    grouped_by,
    id_of,
    prompt_of,
    step_and_group,
    table_of_rollouts,
)

_KEYS = ("global_step", "responses", "scores")
_FILTERED = hidden_by("ROLL's query_filter_config drops groups by their rewards before it logs")


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The rollouts of a file's lines, each with the elements of all lists that are as long as that of responses."""
    lines = quarantine.of_lines()
    for location, line in read_jsonl(file, lines):
        if not _is_batch(line):
            lines.add("global_step, responses and scores are not lists of one length", location)
            continue
        size = len(line["responses"])
        lines.held(size)
        columns = {name: cells for name, cells in line.items() if isinstance(cells, list) and len(cells) == size}
        yield from ((location, {name: cells[at] for name, cells in columns.items()}) for at in range(size))


def _is_batch(line: Mapping[str, Any]) -> bool:
    sizes = {len(list_of(line.get(key))) for key in _KEYS}
    return len(sizes) == 1 and 0 not in sizes


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, Any]:
    reading.inferred.append(grouped_by(all(id_of(row.cells) for row in rows)))
    return {}


def _records(row: LogRow) -> Iterator[Record]:
    step, name = step_and_group(row.cells)
    prompt = prompt_of(row.cells)
    yield Record(
        step=step,
        group=name,
        prompt_id=name,
        prompt=text_of(prompt),
        completion=text_of(row.cells["responses"]),
        messages=parse_messages(prompt),
        reward=row.reward(row.cells.get("scores", ABSENT)),
    )


FORMAT = RowFormat(
    name="roll",
    looks_for="rollout_dump_data.step_*.jsonl with a list a column (ROLL)",
    title="ROLL rollouts",
    patterns=("rollout_dump_data.step_*.jsonl",),
    recognizes_file=Path.is_file,  # nobody else has the name, and a damaged first line is no sample file's
    rows_of=_rows_of,
    survey=_survey,
    records=_records,
    table_of_rows=table_of_rollouts,
    missing=(_FILTERED, TEXT_ONLY),
)

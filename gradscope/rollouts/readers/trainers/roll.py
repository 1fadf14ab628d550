"""ROLL's dumps of rollouts: one line a step, every value a list with an element a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.format import LogRow, RowFormat
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of, required_whole
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, parse_messages, text_of
from gradscope.rollouts.readers.parsing.tables import Row

_KEYS = ("global_step", "responses", "scores")
_FILTERED = hidden_by("ROLL's query_filter_config drops groups by their rewards before it logs")
_BY_ID = "Rollouts of one id and prompt at one step are a group."
_BY_PROMPT = "Some rollouts have no id: those of equal prompts at one step are a group; equal prompts merge."
_digest_of_text = lru_cache(maxsize=256)(digest)  # rollouts of one prompt stand side by side


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


def _records(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    prompt, name = cells.get("prompt", cells.get("messages")), text_of(cells.get("id"))
    row.reading.noted.add(_BY_ID if name else _BY_PROMPT)
    step = required_whole(cells["global_step"], "the step")
    if not prompt and not name:
        raise UnusableRowError("the row has neither an id nor a prompt")
    prompt_id = _digest_of_text(prompt) if type(prompt) is str else digest(prompt)
    group = "/".join(filter(None, (text_of(cells.get("domain")), name, prompt_id)))
    yield Record(
        step=step,
        group=group,
        prompt_id=group,
        prompt=text_of(prompt),
        completion=text_of(cells["responses"]),
        messages=parse_messages(prompt),
        reward=row.reward(cells.get("scores", ABSENT)),
    )


FORMAT = RowFormat(
    name="roll",
    looks_for="rollout_dump_data.step_*.jsonl with a list a column (ROLL)",
    title="ROLL rollouts",
    patterns=("rollout_dump_data.step_*.jsonl",),
    recognizes_file=Path.is_file,  # nobody else has the name, and a damaged first line is no sample file's
    rows_of=_rows_of,
    records=_records,
    inferred=(_BY_ID, _BY_PROMPT),
    if_noted=frozenset({_BY_ID, _BY_PROMPT}),
    missing=(_FILTERED, TEXT_ONLY),
)

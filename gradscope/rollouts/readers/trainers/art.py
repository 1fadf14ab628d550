"""ART's trajectories of training: a Parquet file a step, with group index, reward and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.outside.plain_json import parse_json
from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, numbers_in
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of

_STEP = re.compile(r"^([0-9]+)\.parquet$")


def _records(row: LogRow) -> Iterator[Record]:
    step, group = number_in_name(_STEP, row.file), row.cells.get("group_index")
    if step is None:
        raise UnusableRowError("the file's name is no step")
    if group is None:
        raise UnusableRowError("group_index is missing")
    conversation = cut_conversation(row.cells.get("messages"))
    yield Record(
        step=step,
        group=text_of(group),
        prompt_id=digest(conversation.messages, row.cells.get("group_metadata")),
        prompt=conversation.prompt,
        completion=conversation.completion,
        messages=conversation.messages,
        reward=row.reward(row.cells.get("reward", ABSENT)),
        rewards=numbers_in(_document(row.cells.get("metrics"))),
    )


def _document(text: Any) -> Mapping[str, Any] | None:
    """The JSON object that ART keeps its metrics as, within a cell; None where the cell holds none."""
    try:
        document = parse_json(text)
    except (AttributeError, TypeError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _is_step(file: Path) -> bool:
    return _STEP.search(file.name) is not None


FORMAT = RowFormat(
    name="art",
    looks_for="trajectories/train/<step>.parquet (ART)",
    title="ART trajectories",
    patterns=("trajectories/train/[0-9]*.parquet", "train/[0-9]*.parquet", "[0-9]*.parquet"),
    keeps_file=_is_step,
    recognizes_file=has_keys("group_index", "reward", "messages"),
    records=_records,
    inferred=("Steps are the names of the files.",),
    missing=(TEXT_ONLY,),
)

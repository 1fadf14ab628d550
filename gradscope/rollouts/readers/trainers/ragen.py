"""RAGEN's evaluation rollouts as JSON lines: a conversation a row, its group and reward in the metadata."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_row
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of, numbers_in
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of


def _records(row: LogRow) -> Iterator[Record]:
    metadata = mapping_of(row.cells.get("metadata"))
    group = text_of(metadata.get("group_id"))
    if not group:
        raise UnusableRowError("metadata.group_id is missing")
    conversation = cut_conversation(row.cells.get("messages"))
    yield Record(
        step=0,
        group=group if len(row.reading.files) == 1 else f"{row.file.stem}/{group}",
        prompt_id=group,
        prompt=conversation.prompt,
        completion=conversation.completion,
        messages=conversation.messages,
        reward=row.reward(metadata.get("total_reward", ABSENT)),
        rewards={name: value for name, value in numbers_in(metadata).items() if name == "success"},
    )


FORMAT = RowFormat(
    name="ragen",
    looks_for="val_rollouts_*.jsonl with metadata.group_id (RAGEN)",
    title="RAGEN evaluation rollouts",
    patterns=("val_rollouts*.jsonl",),
    recognizes_file=has_row(lambda row: mapping_of(row.get("metadata")).keys() >= {"group_id", "total_reward"}),
    records=_records,
    missing=(
        "These are evaluation rollouts; RAGEN writes those of training with trainer.rollout_data_dir, as verl does.",
        TEXT_ONLY,
    ),
)

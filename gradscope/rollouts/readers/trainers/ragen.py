"""RAGEN's evaluation rollouts as JSON lines: a conversation a row, its group and reward in the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of, numbers_in, usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.run import Run

_MISSING = (
    "These are evaluation rollouts; RAGEN writes those of training with trainer.rollout_data_dir, as verl does.",
    TEXT_ONLY,
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds RAGEN's evaluation rollouts.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``val_rollouts_*.jsonl`` whose metadata name a group and a total reward.
    """
    files = _files(request.path)
    rows = peek(files[0]) if files else []
    return any(mapping_of(row.get("metadata")).keys() >= {"group_id", "total_reward"} for row in rows)


def read(request: ReadRequest) -> Run:
    """Read evaluation rollouts.

    Args:
        request: A folder of them, or one file.

    Returns:
        The run: one group a prompt and file, at step 0.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    return assemble(
        request,
        records=_records(files, quarantine),
        quarantine=quarantine,
        format="ragen",
        recognized=f"RAGEN evaluation rollouts, {counted(len(files), 'file')}",
        missing=_MISSING,
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "val_rollouts*.jsonl")


def _records(files: Sequence[Path], quarantine: QuarantineLog) -> Iterator[Record]:
    for file in files:
        for place, row in read_jsonl(file, quarantine):
            metadata = mapping_of(row.get("metadata"))
            group = text_of(metadata.get("group_id"))
            if not group:
                quarantine.add("metadata.group_id is missing", place)
                continue
            said = cut_conversation(row.get("messages"))
            yield Record(
                step=0,
                group=group if len(files) == 1 else f"{file.stem}/{group}",
                prompt_id=group,
                prompt=said.prompt,
                completion=said.completion,
                messages=said.messages,
                reward=usable_reward(metadata.get("total_reward", ABSENT), place, quarantine),
                rewards={name: value for name, value in numbers_in(metadata).items() if name == "success"},
            )

"""ART's trajectories: a Parquet file a step, with group index, reward and messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.conversations import cut_conversation
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, numbers_in, usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of
from gradscope.rollouts.readers.parsing.tables import files_like, read_rows
from gradscope.rollouts.run import Run

_STEP = re.compile(r"^(\d+)\.parquet$")
_KEYS = frozenset({"group_index", "reward", "messages"})


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds ART's trajectories.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``<step>.parquet`` with group_index, reward and messages.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read ART's trajectories of training.

    Args:
        request: A model's folder, its ``trajectories``, a split of them, or one file.

    Returns:
        The run.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    return assemble(
        request,
        records=_records(files, quarantine),
        quarantine=quarantine,
        format="art",
        recognized=f"ART trajectories, {counted(len(files), 'file')}",
        inferred=("Steps are the names of the files.",),
        missing=(TEXT_ONLY,),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    names = "[0-9]*.parquet"
    found = files_like(path, f"trajectories/train/{names}", f"train/{names}", names)
    return tuple(file for file in found if _STEP.search(file.name))


def _records(files: Sequence[Path], quarantine: QuarantineLog) -> Iterator[Record]:
    for file in files:
        step = number_in_name(_STEP, file)
        for place, row in read_rows(file, quarantine):
            if step is None or row.get("group_index") is None:
                quarantine.add("group_index is missing" if step is not None else "the file's name is no step", place)
                continue
            said = cut_conversation(row.get("messages"))
            yield Record(
                step=step,
                group=text_of(row["group_index"]),
                prompt_id=digest(said.messages, row.get("group_metadata")),
                prompt=said.prompt,
                completion=said.completion,
                messages=said.messages,
                reward=usable_reward(row.get("reward", ABSENT), place, quarantine),
                rewards=numbers_in(_document(row.get("metrics"))),
            )


def _document(text: Any) -> Mapping[str, Any] | None:
    """ART keeps its metrics as JSON within a cell.

    Args:
        text: The cell.

    Returns:
        The object; None where the cell holds none.
    """
    try:
        document = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None

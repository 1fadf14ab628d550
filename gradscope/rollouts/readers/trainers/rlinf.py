"""RLinf's store of feedback in ``training_data_*.jsonl[.gz]``: a completion a row, accepted by its user or not."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_row
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import mapping_of
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, text_of


def _records(row: LogRow) -> Iterator[Record]:
    data = mapping_of(row.cells.get("data"))
    prompt = text_of(data.get("prompt"))
    if not prompt:
        raise UnusableRowError("data.prompt is missing")
    yield Record(
        step=0,
        group=digest(prompt),
        prompt_id=digest(prompt),
        prompt=prompt,
        completion=text_of(data.get("completion")),
        reward=row.reward(data.get("accepted", ABSENT)),
    )


FORMAT = RowFormat(
    name="rlinf",
    looks_for="training_data_*.jsonl[.gz] with data.prompt, data.completion and data.accepted (RLinf)",
    title="RLinf training data",
    patterns=("training_data_*.jsonl*", "training_data/training_data_*.jsonl*"),
    recognizes_file=has_row(lambda row: mapping_of(row.get("data")).keys() >= {"prompt", "completion", "accepted"}),
    records=_records,
    inferred=("Completions of equal prompts are a group; RLinf does not log at which step they were trained on.",),
    missing=(TEXT_ONLY,),
)

"""lighteval's details: a row a document, with all its responses and one value a metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, numbers_in, usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of
from gradscope.rollouts.readers.parsing.tables import files_like, read_rows
from gradscope.rollouts.run import Run

_KEYS = frozenset({"doc", "model_response", "metric"})
_ONE_SCORE = (
    "lighteval logs one value a document and metric, not one a response: only pass@1 can be computed, and groups have "
    "one rollout. For more, score the responses again and give a file with a row a response."
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds lighteval's details.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``details_*.parquet`` with doc, model_response and metric.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read lighteval's details.

    Args:
        request: The file or its folder; ``columns.reward`` names another metric than the first.

    Returns:
        The run: one group a document, at step 0.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    rows = [(place, row) for file in files for place, row in read_rows(file, quarantine)]
    names = (name for _, row in rows for name in numbers_in(row.get("metric")))
    metric = chosen_name(names, request, "metric", "no metric that is a number")
    most = max((len(list_of(mapping_of(row.get("model_response")).get("text"))) for _, row in rows), default=1)
    return assemble(
        request,
        records=list(_records(rows, metric, quarantine)),
        quarantine=quarantine,
        format="lighteval",
        recognized=f"lighteval details, {counted(len(files), 'file')}",
        inferred=(f"The score is {metric}.",),
        missing=(f"Each document has up to {counted(most, 'response')}. {_ONE_SCORE}",),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "details_*.parquet")


def _records(rows: Sequence[tuple[str, Mapping[str, Any]]], metric: str, quarantine: QuarantineLog) -> Iterator[Record]:
    for place, row in rows:
        document, response = mapping_of(row.get("doc")), mapping_of(row.get("model_response"))
        name = text_of(document.get("id"))
        if not name:
            quarantine.add("doc.id is missing", place)
            continue
        prompt_id = f"{text_of(document.get('task_name'))}/{name}"
        yield Record(
            step=0,
            group=prompt_id,
            prompt_id=prompt_id,
            prompt=text_of(document.get("query")),
            completion=text_of(next(iter(list_of(response.get("text"))), None)),
            reward=usable_reward(mapping_of(row.get("metric")).get(metric, ABSENT), place, quarantine),
            rewards=numbers_in(row.get("metric")),
        )

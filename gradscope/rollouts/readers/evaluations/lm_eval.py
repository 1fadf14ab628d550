"""lm-evaluation-harness with ``--log_samples``: a row a document and filter, with one score for all its responses.

Rows of one filter, the first, are read: one group a document, at step 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.flat.columns import list_names
from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, finite_or_none, is_number, text_of

_ONE_SCORE = (
    "lm-eval logs one score a document, after its filter, not one a response: only pass@1 can be computed, and groups "
    "have one rollout. For more, score `resps` again and give a file with a row a response."
)


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, str]:
    first, *others = dict.fromkeys(text_of(row.cells.get("filter")) for row in rows) or [""]
    metric = _metric([row.cells for row in rows], reading.request)
    most = max((len(list_of(first)) for row in rows for first in list_of(row.cells.get("resps"))), default=1)
    left_out = f"; rows of other filters ({', '.join(others)}) are the same responses and left out" if others else ""
    reading.inferred.append(f"The score is {metric} after the filter {first}{left_out}.")
    reading.missing.append(f"Each document has up to {counted(most, 'response')}. {_ONE_SCORE}")
    return {"metric": metric, "filter": first}


def _metric(rows: Sequence[Mapping[str, Any]], request: ReadRequest) -> str:
    """Which score counts: the metric that was named, else the first that rows list and that is a number."""
    named = request.columns.reward
    listed = [named] if named is not None else [name for row in rows for name in list_of(row.get("metrics"))]
    for name in dict.fromkeys(map(text_of, listed)):
        if any(is_number(row.get(name)) for row in rows):
            return name
    keys = list_names(dict.fromkeys(key for row in rows for key in row))
    raise InputError(
        f"{request.path} has no score {named!r}." if named else f"{request.path} lists no metric that is a number.",
        hint=f"Name the score with --reward-column; the columns are {keys}.",
    )


def _records(row: LogRow, metric: str, filter: str) -> Iterator[Record]:
    cells = row.cells
    if text_of(cells.get("filter")) != filter:
        return
    if cells.get("doc_id") is None:
        raise UnusableRowError("doc_id is missing")
    # Documents are numbered per task, and a file is a task.
    task = row.file.stem.removeprefix("samples_").rpartition("_")[0]
    document = f"{task}/{text_of(cells['doc_id'])}" if len(row.reading.files) > 1 else text_of(cells["doc_id"])
    names = [text_of(name) for name in list_of(cells.get("metrics"))]
    yield Record(
        step=0,
        group=document,
        prompt_id=document,
        prompt=text_of(cells.get("doc")),
        completion=text_of(next(iter(list_of(cells.get("filtered_resps"))), None)),
        reward=row.reward(cells.get(metric, ABSENT)),
        rewards={name: finite_or_none(cells[name]) for name in names if is_number(cells.get(name))},
    )


FORMAT = RowFormat(
    name="lm-eval",
    looks_for="samples_*.jsonl with doc_id, resps and filter (lm-eval)",
    title="lm-eval samples",
    patterns=("samples_*.jsonl", "*/samples_*.jsonl"),
    recognizes_file=has_keys("doc_id", "doc", "resps", "filter"),
    survey=_survey,
    records=_records,
    takes=frozenset({"reward_column"}),
)

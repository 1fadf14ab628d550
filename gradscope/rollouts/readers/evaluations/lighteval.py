"""lighteval's details: a row a document, with all its responses and one value a metric; a group a document, step 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.format import LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, numbers_in
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.parsing.scalars import ABSENT, text_of

_ONE_SCORE = (
    "lighteval logs one value a document and metric, not one a response: only pass@1 can be computed, and groups have "
    "one rollout. For more, score the responses again and give a file with a row a response."
)


def _survey(rows: Sequence[LogRow], reading: Reading) -> dict[str, str]:
    metrics = (name for row in rows for name in numbers_in(row.cells.get("metric")))
    metric = chosen_name(metrics, reading.request, "metric", "no metric that is a number")
    most = max((len(list_of(mapping_of(row.cells.get("model_response")).get("text"))) for row in rows), default=1)
    reading.inferred.append(f"The score is {metric}.")
    reading.missing.append(f"Each document has up to {counted(most, 'response')}. {_ONE_SCORE}")
    return {"metric": metric}


def _records(row: LogRow, metric: str) -> Iterator[Record]:
    document, response = mapping_of(row.cells.get("doc")), mapping_of(row.cells.get("model_response"))
    name = text_of(document.get("id"))
    if not name:
        raise UnusableRowError("doc.id is missing")
    prompt_id = f"{text_of(document.get('task_name'))}/{name}"
    yield Record(
        step=0,
        group=prompt_id,
        prompt_id=prompt_id,
        prompt=text_of(document.get("query")),
        completion=text_of(next(iter(list_of(response.get("text"))), None)),
        reward=row.reward(mapping_of(row.cells.get("metric")).get(metric, ABSENT)),
        rewards=numbers_in(row.cells.get("metric")),
    )


FORMAT = RowFormat(
    name="lighteval",
    looks_for="details_*.parquet with doc, model_response and metric (lighteval)",
    title="lighteval details",
    patterns=("details_*.parquet",),
    recognizes_file=has_keys("doc", "model_response", "metric"),
    survey=_survey,
    records=_records,
    takes=frozenset({"reward_column"}),
)

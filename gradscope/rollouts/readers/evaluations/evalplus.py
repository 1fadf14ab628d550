"""EvalPlus' results: one JSON document, per task a list of samples with two verdicts. One group a task, at step 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_row
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.scalars import text_of

_PLUS = (
    "The verdict is EvalPlus' stricter one: base and plus tests both pass. `base` and `plus` are kept apart as rewards."
)
_BASE = "The file has no plus tests: the verdict is that of the base tests."


def _has_verdicts(document: Mapping[str, Any]) -> bool:
    first = next(map(list_of, mapping_of(document.get("eval")).values()), [])
    return bool(first) and "base_status" in mapping_of(first[0])


def _records(row: LogRow) -> Iterator[Record]:
    for task, samples in mapping_of(row.cells.get("eval")).items():
        for sample in map(mapping_of, list_of(samples)):
            yield _record(task, sample, row)


def _record(task: str, sample: Mapping[str, Any], row: LogRow) -> Record:
    base, plus = (_passed(sample.get(f"{suite}_status")) for suite in ("base", "plus"))
    row.reading.noted.add(_BASE if plus is None else _PLUS)
    if base is None:
        row.reading.quarantine.add("base_status is missing", f"{row.file}:{task}")
    return Record(
        step=0,
        group=task,
        prompt_id=task,
        prompt="",
        completion=text_of(sample.get("solution", sample.get("completion"))),
        reward=base if base is None or plus is None else min(base, plus),
        rewards={"base": base, **({} if plus is None else {"plus": plus})},
    )


def _passed(status: Any) -> float | None:
    """A verdict; EvalPlus writes ``pass``, ``fail`` and ``timeout``, and null where the tests were not run."""
    return float(status == "pass") if isinstance(status, str) else None


FORMAT = RowFormat(
    name="evalplus",
    looks_for="*eval_results.json (EvalPlus)",
    title="EvalPlus results",
    patterns=("*eval_results.json",),
    is_one_file=True,
    recognizes_file=has_row(_has_verdicts),
    records=_records,
    inferred=(_PLUS, _BASE),
    if_noted=frozenset({_PLUS, _BASE}),
)

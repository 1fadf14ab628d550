"""EvalPlus' results: one JSON document, per task a list of samples with two verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.parsing.tables import files_like, read_rows
from gradscope.rollouts.run import Run

_PLUS = (
    "The verdict is EvalPlus' stricter one: base and plus tests both pass. `base` and `plus` are kept apart as rewards."
)
_BASE = "The file has no plus tests: the verdict is that of the base tests."


def recognizes(request: ReadRequest) -> bool:
    """Whether the path is EvalPlus' results.

    Args:
        request: What to read; its path exists.

    Returns:
        True for a document whose ``eval`` holds lists of samples with a base_status.
    """
    files = _files(request.path)
    evaluation = mapping_of(next(iter(peek(files[0])), {}).get("eval")) if files else {}
    first = next((list_of(samples) for samples in evaluation.values()), [])
    return bool(first) and "base_status" in mapping_of(first[0])


def read(request: ReadRequest) -> Run:
    """Read EvalPlus' results.

    Args:
        request: The file, or its folder.

    Returns:
        The run: one group a task, at step 0.
    """
    files = _files(request.path)[:1]
    quarantine = QuarantineLog()
    seen: Counter[str] = Counter()
    records = list(_records(files[0], quarantine, seen)) if files else []
    return assemble(
        request,
        records=records,
        quarantine=quarantine,
        format="evalplus",
        recognized="EvalPlus results",
        inferred=[said for said in (_PLUS, _BASE) if seen[said]],
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "*eval_results.json")


def _records(file: Path, quarantine: QuarantineLog, seen: Counter[str]) -> Iterator[Record]:
    for place, document in read_rows(file, quarantine):
        for task, samples in mapping_of(document.get("eval")).items():
            for sample in map(mapping_of, list_of(samples)):
                yield _record(task, sample, f"{place.rpartition(':')[0]}:{task}", quarantine, seen)


def _record(task: str, sample: Mapping[str, Any], place: str, quarantine: QuarantineLog, seen: Counter[str]) -> Record:
    base, plus = (_passed(sample.get(f"{suite}_status")) for suite in ("base", "plus"))
    seen[_BASE if plus is None else _PLUS] += 1
    if base is None:
        quarantine.add("base_status is missing", place)
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

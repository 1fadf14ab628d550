"""lm-evaluation-harness with ``--log_samples``: a row a document and filter, with one score for all its responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.rollouts.readers.flat.columns import list_names
from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import list_of, usable_reward
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, finite_or_none, is_number, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.run import Run

_KEYS = frozenset({"doc_id", "doc", "resps", "filter"})
_ONE_SCORE = (
    "lm-eval logs one score a document, after its filter, not one a response: only pass@1 can be computed, and groups "
    "have one rollout. For more, score `resps` again and give a file with a row a response."
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path holds lm-eval's samples.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``samples_*.jsonl`` with doc_id, doc, resps and filter.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read lm-eval's samples of one filter.

    Args:
        request: The file, its folder or the folder above; ``columns.reward`` names another metric than the first.

    Returns:
        The run: one group a document, at step 0.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    rows = [(file, place, row) for file in files for place, row in read_jsonl(file, quarantine)]
    filters = list(dict.fromkeys(text_of(row.get("filter")) for _, _, row in rows))
    metric = _metric([row for _, _, row in rows], request)
    most = max((len(list_of(first)) for _, _, row in rows for first in list_of(row.get("resps"))), default=1)
    kept = [row for row in rows if text_of(row[2].get("filter")) == filters[0]]
    others = f"; rows of other filters ({', '.join(filters[1:])}) are the same responses and left out"
    return assemble(
        request,
        records=list(_records(kept, metric, len(files) > 1, quarantine)),
        quarantine=quarantine,
        format="lm-eval",
        recognized=f"lm-eval samples, {counted(len(files), 'file')}",
        inferred=(f"The score is {metric} after the filter {filters[0]}{others if filters[1:] else ''}.",),
        missing=(f"Each document has up to {counted(most, 'response')}. {_ONE_SCORE}",),
        files=files,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "samples_*.jsonl", "*/samples_*.jsonl")


def _metric(rows: Sequence[Mapping[str, Any]], request: ReadRequest) -> str:
    """Which score counts.

    Args:
        rows: All rows.
        request: What was asked for.

    Returns:
        The metric that was named, else the first that rows list and that is a number.

    Raises:
        InputError: There is none.
    """
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


def _records(
    rows: Sequence[tuple[Path, str, Mapping[str, Any]]], metric: str, several: bool, quarantine: QuarantineLog
) -> Iterator[Record]:
    for file, place, row in rows:
        if row.get("doc_id") is None:
            quarantine.add("doc_id is missing", place)
            continue
        # Documents are numbered per task, and a file is a task.
        task = f"{file.stem.removeprefix('samples_').rpartition('_')[0]}/" if several else ""
        document = f"{task}{text_of(row['doc_id'])}"
        names = [text_of(name) for name in list_of(row.get("metrics"))]
        yield Record(
            step=0,
            group=document,
            prompt_id=document,
            prompt=text_of(row.get("doc")),
            completion=text_of(next(iter(list_of(row.get("filtered_resps"))), None)),
            reward=usable_reward(row.get(metric, ABSENT), place, quarantine),
            rewards={name: finite_or_none(row[name]) for name in names if is_number(row.get(name))},
        )

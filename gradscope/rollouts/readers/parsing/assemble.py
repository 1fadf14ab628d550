"""The last step of every reader: a look at the first rows, then records into groups and groups into a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.results.source import Source
from gradscope.rollouts.checkpoint_folders import find_base, find_tokenizer, with_initial
from gradscope.rollouts.groups import num_used, sizes_of
from gradscope.rollouts.readers.parsing.grouping import Record, build_groups, describe_sizes
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import expand, read_rows
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup

_NUM_PEEKED = 50
"""Rows that are looked at to learn the columns: not every row of a log names every key."""
_MOST_PEEKED = 16_000_000
"""Bytes behind which none is looked at any more, however few there were: a row may be all rollouts of a step."""


def peek(path: Path, quarantine: QuarantineLog | None = None, *, num_rows: int = _NUM_PEEKED) -> list[dict[str, Any]]:
    """The first readable rows of a file, or of the first file of a folder or glob that has any.

    Args:
        path: What to look at.
        quarantine: Takes what was met on the way; None: nobody asks.
        num_rows: At most so many.

    Returns:
        Their cells.
    """
    for file in expand(path):
        stat = file.stat()
        rows, met = _first_rows(file, stat.st_size, stat.st_mtime_ns, num_rows)
        if quarantine is not None:
            quarantine.include(met, {})
        if rows:
            return list(rows)
    return []


@lru_cache(maxsize=4)
def _first_rows(file: Path, size: int, written: int, num_rows: int) -> tuple[tuple[dict[str, Any], ...], QuarantineLog]:
    """The first rows of a file and what was met on the way; every format asks for them in turn."""
    met, rows = _CountedLog(), []
    for _, row in islice(read_rows(file, met), num_rows):
        rows.append(row)
        if met.num_bytes >= _MOST_PEEKED:
            break
    return tuple(rows), met


class _CountedLog(QuarantineLog):
    """Counts the bytes of the rows that were read."""

    num_bytes = 0

    def passed(self, num_bytes: int, num_rows: int = 1) -> None:
        self.num_bytes += num_bytes


def assemble(request: ReadRequest, *, records: Iterable[Record], quarantine: QuarantineLog, **about: Any) -> Run:
    """A run from flat records, whose reading fills ``quarantine``; for the rest see :func:`assemble_groups`."""
    return assemble_groups(request, groups=build_groups(records, quarantine), quarantine=quarantine, **about)


def assemble_groups(
    request: ReadRequest,
    *,
    groups: Sequence[RolloutGroup],
    quarantine: QuarantineLog,
    format: str,
    recognized: str,
    inferred: Iterable[str] = (),
    missing: Iterable[str] = (),
    files: tuple[Path, ...] | None = None,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    needs_reward: bool = True,
) -> Run:
    """A run from its groups.

    Args:
        request: What was asked for.
        quarantine: Rows that were set aside.
        format: The format's name.
        recognized: What the input is, in words.
        inferred: Sentences on what was worked out.
        missing: Sentences on what the log lacks.
        files: The files that were read; by default those that the path means.
        metrics: What the trainer logged, by step.
        needs_reward: Whether a row without a reward is of no use; False for formats that have none.

    Returns:
        The run.

    Raises:
        InputError: No row can be used, or no file be read.
    """
    set_aside = quarantine.result()
    num_rows = num_used(groups, needs_reward=needs_reward)
    if not num_rows:
        if not set_aside.num_rows:
            quarantine.raise_lost()
        first = next((f"; set aside: {set_aside.num_rows}, first {r.first}: {r.reason}" for r in set_aside.reasons), "")
        raise InputError(
            f"{request.path} has no usable rows{first}.",
            hint="A row needs a finite number as reward and something to group by.",
        )
    folder = request.path if request.path.is_dir() else request.path.parent
    source = Source(
        path=str(request.path),
        format=format,
        recognized=recognized,
        files=tuple(map(str, expand(request.path) if files is None else files)),
        num_rows=num_rows,
        inferred=(*inferred, *describe_sizes(sizes_of(groups))),
        missing=tuple(missing),
        quarantined=set_aside,
    )
    return Run(
        path=request.path,
        source=source,
        groups=groups,
        metrics=metrics or {},
        settings=read_trainer_settings(request.run_config),
        weights=with_initial((), request.initial, lambda adapter: request.model or find_base(adapter, folder)),
        tokenizer=find_tokenizer(request.initial, None if request.model is None else Path(request.model)),
    )

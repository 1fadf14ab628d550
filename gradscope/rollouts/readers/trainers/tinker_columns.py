"""The Tinker cookbook's summaries as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from gradscope.rollouts.readers.format import LogColumns, Reading
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import numbers_in
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.scan.line_columns import LineColumns, member, numeric, quoted, step_number

_NUM_PEEKED = 20
"""Rows of each file that are looked at for the names of metrics."""
_METRICS = "trajectory_metrics"
_PATHS = tuple(map(member, ("iteration", "group_idx", "total_reward", _METRICS)))
_STEP, _GROUP, _REWARD, _OBJECT = (f"c[{at}]" for at in range(1, len(_PATHS) + 1))


def tinker_columns(reading: Reading) -> LogColumns:
    """How summaries are read as columns; metrics that come late are for the row reader."""
    first = (row for file in reading.files for _, row in islice(read_jsonl(file, QuarantineLog()), _NUM_PEEKED))
    lines = _line_columns(first)
    late: set[str] = set()
    return LogColumns(
        names=lines.columns,
        of_file=lambda _: lines,
        shared={"known": lines.rewards.keys(), "late": late},
        judged=lambda table: None if late else table,
    )


def _line_columns(first: Iterable[Mapping[str, Any]]) -> LineColumns:
    names = tuple(dict.fromkeys(name for row in first for name in numbers_in(row.get(_METRICS))))
    known = ", ".join(map(quoted, names))
    return LineColumns(
        paths=(*_PATHS, *(member(_METRICS, name) for name in names)),
        derived={"step": step_number(_STEP), "place": f"{step_number(_GROUP)}::VARCHAR"},
        step="step",
        group="place",
        prompt=("step", "place"),
        prompt_id="step || '/' || place",
        reward=numeric(_REWARD),
        rewards={name: numeric(f"c[{at}]") for at, name in enumerate(names, start=len(_PATHS) + 1)},
        plain=f"coalesce(list_has_all([{known}]::VARCHAR[], json_keys({_OBJECT})), true)",
    )

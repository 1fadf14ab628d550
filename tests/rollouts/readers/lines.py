"""Write small logs for tests of readers."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.errors import GradscopeError, InputError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run

IDS = {"prompt_ids": [5, 9], "completion_ids": [7, 11, 2], "completion_mask": [1, 0, 1], "logprobs": [-0.5, 0, -1.5]}
"""The exact tokens of a completion, as TRL names them."""


def write_lines(path: Path, *rows: Any, ended: bool = True) -> Path:
    """Write JSON lines, one a row or text as it is, the last perhaps without its end, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n" * (ended and lines != []))
    return path


def write_rows(path: Path, rows: Any) -> Path:
    """Write rows, or a JSON document, in the form that the suffix of the path names, and return it."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    else:
        write_lines(path, *([json.dumps(rows)] if path.suffix == ".json" else rows))
    return path


def refused(
    message: str, read: Callable[..., Any], *log: Any, error: type[GradscopeError] = InputError, **options: Any
) -> str:
    """Read a log in some way, by which it is refused with this message, and return the hint."""
    with pytest.raises(error, match=message) as caught:
        read(*log, **options)
    return caught.value.hint or ""


def refusal(path: Path | str, message: str, *options: Any, **extra: Any) -> str:
    """:func:`refused` by ``read_run``."""
    return refused(message, read_run, path, *options, **extra)


def naming(**columns: str | None) -> ReadOptions:
    """Options that name columns by their roles."""
    return ReadOptions(columns=ColumnNames(**columns))


def rewards_of(run: Run) -> dict[str, tuple[float | None, ...]]:
    """Group id -> rewards."""
    return {group.group_id: group.rewards for group in run.groups}


def set_aside(run: Run) -> Mapping[str, int]:
    """Reason -> rows that were set aside."""
    return {reason.reason: reason.num_rows for reason in run.source.quarantined.reasons}


def steps_logged(step: int) -> list[dict[str, Any]]:
    """Two groups of two, whose ids are those of every other step."""
    return [
        {"group_id": g, "prompt": f"{step} {g}", "sample": n, "reward": float(n * g)} for g in (0, 1) for n in (0, 1)
    ]

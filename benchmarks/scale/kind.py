"""What a kind of logs is here: how one is made, and what scans it."""

import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from benchmarks.scale.made_up import MadeUpRun

_SCAN = (
    "import json, sys, duckdb; log = duckdb.connect(); log.execute('SET enable_progress_bar = false'); "
    "print(json.dumps(log.execute(sys.argv[1]).fetchone()))"
)


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of logs."""

    name: str
    num_rows: int
    """Of a log at full size, about 1 GB; TRL's is compressed, and slime's smaller, for torch reads it slowly."""
    make: Callable[[Path, MadeUpRun, bool], None]
    """Writes a run into an empty folder; the flag is for a broken line in the middle of every file."""
    peers: Callable[[Path], dict[str, list[str]]]
    """Name -> a command that prints the number of groups, of dead ones and of rollouts as a JSON list."""
    rows_a_step: int | None = None  # None: as many as 200 steps leave to each
    has_lines: bool = True  # whether a line of its files can be broken


def duckdb_scan(query: str) -> dict[str, list[str]]:
    """A bare scan: a Python process that imports DuckDB and runs one query."""
    return {"scan": [sys.executable, "-c", _SCAN, query]}


def loop(name: str, folder: Path) -> list[str]:
    """A Python process with one of the loops of ``loops``."""
    return [sys.executable, "-m", "benchmarks.scale.loops", name, str(folder)]


def lines(pattern: Path, columns: str, *, with_filename: bool = False) -> str:
    """The table of some files of JSON lines.

    Args:
        pattern: A glob.
        columns: What is read of a line: names and types.
        with_filename: Whether each row has the name of its file.

    Returns:
        A table function of DuckDB's.
    """
    return (
        f"read_json({quoted(pattern)}, format='newline_delimited', ignore_errors=true, "
        f"filename={str(with_filename).lower()}, columns={{{columns}}})"
    )


def groups_of(rows: str, *, step: str = "step", by: str = "step, name") -> str:
    """The query of a bare scan.

    Args:
        rows: A query of the columns that the answer needs: step, name, prompt and reward; a line that could not be read
            has no reward.
        step: A group's step.
        by: What tells groups apart.

    Returns:
        The query: groups, dead groups and rollouts, and what keeps DuckDB from leaving out the rest.
    """
    return f"""
        SELECT count(step), count_if(high - low <= 1e-8), sum(n)::BIGINT, sum(total), count(prompt)
        FROM (SELECT {step} AS step, name, any_value(prompt) AS prompt,
                     count(reward) AS n, sum(reward) AS total, min(reward) AS low, max(reward) AS high
              FROM ({rows}) WHERE reward IS NOT NULL GROUP BY {by})"""


def quoted(path: Path) -> str:
    """A path as text of SQL."""
    return "'" + str(path).replace("'", "''") + "'"

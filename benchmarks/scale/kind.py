"""What a kind of logs is here: how one is made, and what scans it."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from benchmarks.scale.made_up import MadeUpRun, write_lines

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
    scan: Callable[[Path], str] | None = None  # DuckDB's query, by ``groups_of``; None: a loop stands beside
    rows_a_step: int | None = None  # None: as many as 200 steps leave to each
    has_lines: bool = True  # whether a line of its files can be broken

    def peer(self, folder: Path) -> list[str]:
        """A command that prints the number of groups, of dead ones and of rollouts as a JSON list."""
        if self.scan is None:
            return [sys.executable, "-m", "benchmarks.scale.torch_loop", str(folder)]
        return [sys.executable, "-c", _SCAN, self.scan(folder)]


def file_a_step(
    name: str, rows: Callable[[MadeUpRun, int], Iterable[object]]
) -> Callable[[Path, MadeUpRun, bool], None]:
    """A kind's ``make``: a file of JSON lines a step, its name with ``{step}``, or ``{index}`` that counts from 0."""

    def make(folder: Path, run: MadeUpRun, with_broken: bool) -> None:
        for step in run.steps:
            file = folder / name.format(step=step, index=step - 1)
            write_lines(file, rows(run, step), run.size(step) // 2 if with_broken else None)

    return make


def lines(pattern: Path, columns: str) -> str:
    """DuckDB's table of some files of JSON lines, with names and types of what is read of each."""
    return f"read_json({quoted(pattern)}, format='newline_delimited', ignore_errors=true, columns={{{columns}}})"


def groups_of(rows: str) -> str:
    """The query of a bare scan: groups, dead groups and rollouts, and what keeps DuckDB from leaving out the rest.

    It goes over a query of step, name, prompt and reward; a line that could not be read has no reward.
    """
    return f"""
        SELECT count(step), count_if(high - low <= 1e-8), sum(n)::BIGINT, sum(total), count(prompt)
        FROM (SELECT step, name, any_value(prompt) AS prompt,
                     count(reward) AS n, sum(reward) AS total, min(reward) AS low, max(reward) AS high
              FROM ({rows}) WHERE reward IS NOT NULL GROUP BY step, name)"""


def quoted(path: Path) -> str:
    """A path as text of SQL."""
    return "'" + str(path).replace("'", "''") + "'"

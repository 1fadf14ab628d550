"""Parquet and CSV files as columns: each file, if and only if every row of it is plain.

Plain means: the row reader would use the row, and DuckDB is known to read it the same way. A file with any other row is
one for the row reader, which knows the reason and the line.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradscope.rollouts.arrays import to_indices, to_numpy, to_strings
from gradscope.rollouts.readers.parsing.jsonl import open_bytes
from gradscope.rollouts.readers.parsing.nested_cells import LARGEST_STEP
from gradscope.rollouts.readers.parsing.tables import suffix_of
from gradscope.rollouts.readers.scan.line_columns import finite, numeric, quoted
from gradscope.rollouts.readers.scan.parts import REWARD, Part, part_of_rows

_BLOCK = 1 << 18
_END = b"\n"
_ROWS = 1 << 17
"""Rows that are grouped at once."""
_PATTERN_LETTERS = frozenset("*?[")
"""DuckDB takes a path with one of these for a pattern."""
_UNREADABLE = (pa.ArrowException, OSError, EOFError, zlib.error, csv.Error)
"""What reading a damaged file raises, beside DuckDB's errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellColumns:
    """How the columns of a file with one cell a column are read."""

    reward: str
    """The reward's column."""
    rewards: tuple[str, ...]
    """Those of reward functions."""
    step: str | None
    """The step's column; None: all rows are of step 0."""
    group: str
    """The column that tells groups of a step apart."""
    prompt: str
    """The column that tells prompts apart."""
    prompt_id: Callable[[str], str]
    """The id of a prompt by its cell, a text."""
    group_is_prompt: bool = False
    """Whether groups are told apart by their prompts alone: then the prompt's id is the group's name."""

    @property
    def used(self) -> tuple[str, ...]:
        """All of these columns, each once."""
        names = (self.step, self.group, self.prompt, self.reward, *self.rewards)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def query(self, source: str, *, is_typed: bool) -> str:
        """The query of the table function ``source``, whose parameter is the file's name."""
        further = [name for name in self.rewards if name != self.reward]
        cells = {f"x{at}": _number(name, is_typed) for at, name in enumerate([self.reward, *further])}
        found = {
            "s": self._step(is_typed),
            "g": f"{_name(self.group)}::VARCHAR",
            "p": f"{_name(self.prompt)}::VARCHAR",
            **cells,
        }
        inner = ", ".join(f"{expression} AS {name}" for name, expression in found.items())
        step = "try_cast(s AS DOUBLE)"
        is_step = f"{step} = floor({step}) AND {step} BETWEEN 0 AND {LARGEST_STEP}"
        is_key = "g <> '' AND left(g, 1) NOT IN ('[', '{') AND left(p, 1) NOT IN ('[', '{')"
        rewards = ", ".join(f"coalesce({finite(name)}, 'NaN'::DOUBLE) AS {name}" for name in cells)
        return f"""
            SELECT coalesce(try_cast({step} AS BIGINT), 0) AS step, g AS name, p AS prompt, {rewards},
                   (NOT coalesce({is_step} AND {is_key} AND isfinite(x0), false))::UTINYINT AS is_odd
            FROM (SELECT {inner} FROM {source})"""

    def _step(self, is_typed: bool) -> str:
        if self.step is None:
            return "0"
        cell = _name(self.step)
        return cell if is_typed else f"CASE WHEN NOT {_has_others(cell)} THEN {cell} END"

    def columns_of(self, rows: pa.RecordBatch) -> dict[str, Any]:
        """The columns of a part from the rows of the query, row by row, [R] each."""
        further = [name for name in self.rewards if name != self.reward]
        reward = to_numpy(rows["x0"])
        found = {name: to_numpy(rows[f"x{at}"]) for at, name in enumerate(further, start=1)}
        return {"reward": reward, **{REWARD + name: found.get(name, reward) for name in self.rewards}}


def scan_table_file(connection: Any, path: Path, columns: CellColumns, *, place: int) -> list[Part] | None:
    """The groups of a file.

    Args:
        connection: A DuckDB connection that nothing else uses meanwhile.
        path: An existing Parquet or CSV file.
        columns: How to read it.
        place: The number of its first row within the log.

    Returns:
        Its parts; None where the row reader has to read it.
    """
    import duckdb  # small logs do without it, and start sooner

    if _PATTERN_LETTERS & set(str(path)):
        return None
    try:
        source = _source(path, columns)
        if source is None:
            return None
        query = columns.query(source, is_typed=source.startswith("read_parquet"))
        parts, num_rows = [], 0
        for rows in connection.sql(query, params=[str(path)]).to_arrow_reader(_ROWS):
            if to_numpy(rows["is_odd"]).any():
                return None
            if len(rows):
                parts.append(_part(rows, columns, place + num_rows))
            num_rows += len(rows)
        return parts if num_rows and _num_rows(path) in (None, num_rows) else None
    except (duckdb.Error, *_UNREADABLE):
        return None


def _part(rows: pa.RecordBatch, columns: CellColumns, place: int) -> Part:
    step, numbers_in_log = to_numpy(rows["step"]), place + np.arange(len(rows))
    part, first = part_of_rows(step, rows["name"], columns.columns_of(rows), numbers_in_log)
    names = rows["prompt"].take(to_indices(first)).dictionary_encode()
    prompts = [columns.prompt_id(text) for text in names.dictionary.to_pylist()]
    group = to_strings(prompts).take(names.indices) if columns.group_is_prompt else part.group
    return replace(part, prompt=to_numpy(names.indices).astype(np.int64), prompts=prompts, group=group)


def _source(path: Path, columns: CellColumns) -> str | None:
    if suffix_of(path) == ".parquet":
        return "read_parquet($1)" if _has_plain_types(path, columns) else None
    header = _header(path)
    if not all(header.count(name) == 1 for name in columns.used) or len(set(header)) < len(header):
        return None
    types = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in header)
    options = "auto_detect=false, header=true, delim=',', quote='\"', escape='\"', strict_mode=true"
    return f"read_csv($1, {options}, columns={{{types}}})"


def _number(column: str, is_typed: bool) -> str:
    """The expression for a reward's column; typed cells are numbers or booleans, others text."""
    cell = _name(column)
    return (
        f"CAST({cell} AS DOUBLE)"
        if is_typed
        else f"CASE WHEN NOT {_has_others(cell)} THEN {numeric(f'lower({cell})')} END"
    )


def _has_others(cell: str) -> str:
    """The expression for whether a text is a number to DuckDB and none to the row reader: DuckDB passes over ``_``."""
    return f"contains({cell}, '_')"


def _has_plain_types(path: Path, columns: CellColumns) -> bool:
    with path.open("rb") as stream:
        schema = pq.read_schema(stream)
    if not all(schema.names.count(name) == 1 for name in columns.used):
        return False
    kinds: Mapping[str, pa.DataType] = {name: schema.field(name).type for name in columns.used}
    if columns.step is not None and not _is_number(kinds[columns.step]):
        return False
    ids = [kinds[name] for name in (columns.group, columns.prompt)]
    plain = all(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in ids)
    rewards = [kinds[name] for name in (columns.reward, *columns.rewards)]
    return plain and all(_is_number(kind) or pa.types.is_boolean(kind) for kind in rewards)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _num_rows(path: Path) -> int | None:
    """How many rows the row reader would see: of CSV, DuckDB passes over blank lines without a word.

    Returns:
        Ends of line, and one more for a last line without, less the header; None for Parquet.
    """
    if suffix_of(path) == ".parquet":
        return None
    num_ends, last = 0, _END
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            num_ends += block.count(_END)
            last = block[-1:]
    return num_ends + (last != _END) - 1


def _header(path: Path) -> list[str]:
    with open_bytes(path) as stream:
        first = stream.readline().decode("utf-8-sig", errors="replace")
    return next(csv.reader(io.StringIO(first, newline="")), [])


def _name(column: str) -> str:
    escaped = column.replace('"', '""')
    return f'"{escaped}"'

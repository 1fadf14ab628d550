"""Files of flat rows reduced by DuckDB to their groups: each file, if and only if every row of it is plain.

Plain means: the row reader would use the row, and DuckDB is known to read it the same way. A row with anything else (no
reward, a reward that is text, a structure for an id, a blank line, bytes that are not UTF-8) makes the whole file one
for the row reader, which knows the reason and the line. So the answers are those of the row reader, whatever the file;
only of a key that one JSON object names twice does DuckDB take the first and the row reader the last.
"""

from __future__ import annotations

import csv
import io
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.parsing.jsonl import open_bytes
from gradscope.rollouts.readers.parsing.nested_cells import LARGEST_STEP
from gradscope.rollouts.readers.parsing.scalars import digest
from gradscope.rollouts.readers.parsing.tables import suffix_of

_BLOCK = 1 << 18
"""Bytes that lines are counted in: few enough for a processor's cache, and so many that threads do not wait for one
another."""
_END = ord("\n")
_INDEX = "file_index"
"""DuckDB's own column: which of the files a row is from."""
_PATTERN_LETTERS = frozenset("*?[")
"""DuckDB takes a path with one of these for a pattern."""
_UNREADABLE = (duckdb.Error, pa.ArrowException, OSError, EOFError, zlib.error, csv.Error)
"""What reading a damaged file raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a row is grouped by."""

    rewards: tuple[str, ...]
    """The reward's column, then those of further rewards."""
    step: str | None
    """The step's column; None: all rows are of step 0."""
    group: str
    """The column that tells groups of a step apart."""
    prompt: str
    """The column that tells prompts apart."""
    from_text: bool
    """Whether ``prompt`` is a text, whose digest is the prompt's id."""

    @classmethod
    def of(cls, columns: ColumnNames, rewards: tuple[str, ...]) -> Keys:
        """The keys of a log with a reward and something to group by, as the row reader takes them."""
        group = columns.group or columns.prompt_id or columns.prompt or ""
        return cls(
            rewards=tuple(dict.fromkeys([columns.reward or "", *rewards])),
            step=columns.step,
            group=group,
            prompt=columns.prompt_id or columns.prompt or group,
            from_text=columns.prompt_id is None and columns.prompt is not None,
        )


Files = Mapping[int, Path]
"""Files by their number within the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What came of some files."""

    groups: tuple[pa.Table, ...]
    """A row a file, step, group and prompt, sorted by the first three: the file's number, these, and a list of rollouts
    in no order, each a structure with its rewards as ``"0"``, ``"1"``, ..."""
    others: tuple[int, ...]
    """The files that the row reader has to read."""


def scan_groups(connection: Any, files: Files, keys: Keys) -> Scanned:
    """The groups of files, each for itself.

    Args:
        connection: A DuckDB connection.
        files: Existing files: one, or several of JSON lines, which one query reads side by side.
        keys: What to group by.

    Returns:
        The groups of the plain files, and the others.
    """
    if any(_PATTERN_LETTERS & set(str(file)) for file in files.values()):
        return _one_by_one(connection, files, keys)
    names = [str(file) for file in files.values()]
    try:
        source = _source(next(iter(files.values())), keys)
        if source is None:
            return _one_by_one(connection, files, keys)
        table = connection.sql(_query(keys, source), params=[names, list(files)]).to_arrow_table()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            num_lines = dict(zip(files, pool.map(_num_lines, files.values()), strict=True))
        plain = _plain_files(table, num_lines)
    except _UNREADABLE:
        return _one_by_one(connection, files, keys)
    if len(plain) < len(files):
        table = table.filter(pc.is_in(table["file"], value_set=pa.array(plain, type=pa.int64())))
    groups = _named(table.drop_columns(["is_odd"]), keys)
    return Scanned(groups=(groups,), others=tuple(number for number in files if number not in plain))


def _one_by_one(connection: Any, files: Files, keys: Keys) -> Scanned:
    """What can be reduced after a failure, which is one file's; of a file that fails alone the row reader says why."""
    if len(files) == 1:
        return Scanned(groups=(), others=tuple(files))
    scanned = [scan_groups(connection, {number: file}, keys) for number, file in files.items()]
    return Scanned(
        groups=tuple(table for one in scanned for table in one.groups),
        others=tuple(number for one in scanned for number in one.others),
    )


def _plain_files(table: pa.Table, num_lines: Mapping[int, int | None]) -> list[int]:
    """The files of which DuckDB saw every row, and found none odd; where it passes over none, ``num_lines`` is None."""
    sizes = pc.list_value_length(table["rewards"]).combine_chunks()
    # Not by pyarrow's own way to numpy: it imports pandas, which takes as long as hundreds of thousands of rows.
    seen = np.bincount(np.from_dlpack(table["file"].combine_chunks()), np.from_dlpack(sizes), max(num_lines) + 1)
    odd = set(table.filter(table["is_odd"])["file"].to_pylist())
    whole = (number for number, lines in num_lines.items() if lines is None or lines == seen[number])
    return [number for number in whole if seen[number] > 0 and number not in odd]


def _source(path: Path, keys: Keys) -> str | None:
    used = list(dict.fromkeys(name for name in (keys.step, keys.group, keys.prompt, *keys.rewards) if name is not None))
    match suffix_of(path):
        case ".parquet":
            return "read_parquet($1)" if _has_plain_types(path, keys) else None
        case ".csv":
            header = _header(path)
            if (
                not all(header.count(name) == 1 for name in used)
                or len(set(header)) < len(header)
                or _hides_index(header)
            ):
                return None
            types = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in header)
            options = "auto_detect=false, header=true, delim=',', quote='\"', escape='\"', strict_mode=true"
            return f"read_csv($1, {options}, columns={{{types}}})"
        case ".json":
            return None
        case _ if _hides_index(used):
            return None
        case _:
            # A reward keeps its JSON form: a number in quotes is text, and text is no reward.
            types = ", ".join(f"{_text(name)}: '{'JSON' if name in keys.rewards else 'VARCHAR'}'" for name in used)
            return f"read_json($1, format='newline_delimited', ignore_errors=true, columns={{{types}}})"


def _query(keys: Keys, source: str) -> str:
    """One pass over the rows; what is asked of a step, a group or a prompt is asked once a group.

    Returns:
        The query of the table function ``source``; its parameters are the files' names and their numbers.
    """
    is_typed = source.startswith("read_parquet")
    numbers = [f"{_number(name, is_typed)} AS x{at}" for at, name in enumerate(keys.rewards)]
    # Of further rewards one that is no finite number is null, as in the row reader; the main one is judged.
    finite = [f"CASE WHEN isfinite(x{at}) THEN x{at} END" for at in range(1, len(numbers))]
    rewards = ", ".join(f"'{at}': {number}" for at, number in enumerate(["x0", *finite]))
    odd_step = f"s IS NULL OR NOT isfinite(s) OR s <> floor(s) OR abs(s) > {LARGEST_STEP}"
    odd_key = "g IS NULL OR g = '' OR left(g, 1) IN ('[', '{')"
    odd_prompt = "p IS NULL OR left(p, 1) IN ('[', '{')"
    return f"""
        WITH rows AS (
            SELECT {_INDEX}, {"0" if keys.step is None else _name(keys.step)} AS s, {_name(keys.group)} AS g,
                   {_name(keys.prompt)} AS p, {", ".join(numbers)}
            FROM {source}),
        raw AS (
            SELECT {_INDEX}, s, g, p, list({{{rewards}}}) AS rewards, bool_or(x0 IS NULL OR NOT isfinite(x0)) AS is_odd
            FROM rows GROUP BY ALL),
        groups AS (
            SELECT ($2::BIGINT[])[{_INDEX}::BIGINT + 1] AS file, try_cast(s AS DOUBLE) AS s, g::VARCHAR AS g,
                   p::VARCHAR AS p, rewards, is_odd
            FROM raw)
        SELECT file, try_cast(s AS BIGINT) AS step, g AS "group", p AS prompt, rewards,
               {odd_step} OR {odd_key} OR {odd_prompt} OR is_odd AS is_odd
        FROM groups ORDER BY file, step, "group\""""


def _number(column: str, is_typed: bool) -> str:
    """The expression for a reward's column as a number, or null; typed cells are numbers or booleans, others text."""
    if is_typed:
        return f"CAST({_name(column)} AS DOUBLE)"
    text = f"{_name(column)}::VARCHAR"
    return f"coalesce(try_cast({text} AS DOUBLE), CASE lower({text}) WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END)"


def _has_plain_types(path: Path, keys: Keys) -> bool:
    with path.open("rb") as stream:
        schema = pq.read_schema(stream)
    if _hides_index(schema.names):
        return False
    if not all(schema.names.count(name) == 1 for name in (keys.group, keys.prompt, *keys.rewards)):
        return False
    if keys.step is not None and not (schema.names.count(keys.step) == 1 and _is_number(schema.field(keys.step).type)):
        return False
    ids = [schema.field(name).type for name in (keys.group, keys.prompt)]
    plain = all(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in ids)
    rewards = [schema.field(name).type for name in keys.rewards]
    return plain and all(_is_number(kind) or pa.types.is_boolean(kind) for kind in rewards)


def _hides_index(names: Iterable[str]) -> bool:
    return _INDEX in map(str.lower, names)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _named(table: pa.Table, keys: Keys) -> pa.Table:
    if not keys.from_text:
        return table
    prompts = table["prompt"].combine_chunks().dictionary_encode()
    names = pa.array([digest(text) for text in prompts.dictionary.to_pylist()], type=pa.string())
    ids = names.take(prompts.indices)
    columns = {name: table[name] for name in table.column_names}
    # Without another id, prompts are the groups; with one, they only name what returns over steps.
    return pa.table({**columns, "prompt": ids, **({"group": ids} if keys.group == keys.prompt else {})})


def _num_lines(path: Path) -> int | None:
    """How many rows the row reader would see: DuckDB passes over blank lines without a word.

    Returns:
        Ends of line, and one more for a last line without; a CSV's header does not count. None for Parquet.
    """
    if suffix_of(path) == ".parquet":
        return None
    num_ends, last = 0, _END
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            letters = np.frombuffer(block, dtype=np.uint8)
            num_ends += int(np.count_nonzero(letters == _END))
            last = int(letters[-1])
    return num_ends + (last != _END) - (suffix_of(path) == ".csv")


def _header(path: Path) -> list[str]:
    with open_bytes(path) as stream:
        first = stream.readline().decode("utf-8-sig", errors="replace")
    return next(csv.reader(io.StringIO(first, newline="")), [])


def _name(column: str) -> str:
    escaped = column.replace('"', '""')
    return f'"{escaped}"'


def _text(column: str) -> str:
    escaped = column.replace("'", "''")
    return f"'{escaped}'"

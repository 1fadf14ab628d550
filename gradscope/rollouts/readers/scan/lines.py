"""Lines of JSON as columns: DuckDB parses all lines of a block at once, and says which of them are odd.

A line is plain where DuckDB is known to read it as the row reader does. An odd one (no JSON, no reward, a reward that
is text, a structure for an id, bytes that are not UTF-8) goes to the row reader, alone: it knows the reason. Two things
are known to differ: the row reader sets a line aside that names any key twice, here only the row's own keys count and
those of objects that something is read from; and DuckDB lets ``nan`` and ``inf`` in small letters pass, which JSON does
not have, in cells that nothing is read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_indices, to_numpy
from gradscope.rollouts.readers.scan.cut_lines import Lines
from gradscope.rollouts.readers.scan.line_columns import LineColumns
from gradscope.rollouts.readers.scan.line_queries import NAME, LineQueries
from gradscope.rollouts.readers.scan.line_shapes import LineShape, common_shapes
from gradscope.rollouts.readers.scan.parts import Part, part_of_rows
from gradscope.rollouts.types import group_name

FileSteps = Sequence[int | None] | None
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedLines:
    """What came of a block."""

    lines: Lines
    """Its lines."""
    part: Part | None
    """The groups of its plain lines, their places counted from the block's first line; None where there are none."""
    prompt: NDArray[Any]
    """What the prompts of these groups are told apart by, [j]."""
    prompt_ids: Sequence[str] | None = None
    """Their ids, where an expression tells them, [j]."""
    steps: NDArray[np.int64]
    """The steps of the plain lines, in order."""
    odd: NDArray[np.int64]
    """The places of the others, ascending."""


def scan_lines(
    queries: LineQueries, pieces: Sequence[bytes], columns: LineColumns, file_steps: FileSteps = None
) -> ScannedLines:
    """The groups of a block.

    Args:
        queries: Of a connection that nothing else uses meanwhile.
        pieces: Whole lines.
        columns: How to read them.
        file_steps: The step of each piece's file, [pieces]; None: files tell none.

    Returns:
        Groups of the plain lines, and which lines are odd: all of them where DuckDB cannot take the block.
    """
    lines, rows = _rows(queries, pieces, columns, file_steps)
    if rows is None:
        return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=np.arange(len(lines)))
    is_odd = to_numpy(rows["is_odd"]).astype(np.bool_)
    is_odd[lines.with_commas] = True
    odd, plain = np.flatnonzero(is_odd), np.flatnonzero(~is_odd)
    if not len(plain):
        return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=odd)
    rows = rows.take(to_indices(plain)) if len(odd) else rows
    group = rows["name"].combine_chunks()
    steps = to_numpy(rows["step"])
    part, first = part_of_rows(steps, group, columns.columns_of(rows), plain)
    ids = (
        None if callable(columns.prompt_id) else rows["prompt_id"].combine_chunks().take(to_indices(first)).to_pylist()
    )
    if columns.prompt:
        prompt = to_numpy(rows["prompt"])[first]
    else:
        first_lines = lines.to_arrow(file_steps).take(to_indices(plain[first]))
        prompt = to_numpy(queries.rows(columns.of_first_lines(), first_lines)["prompt"])
    return ScannedLines(lines=lines, part=part, prompt=prompt, prompt_ids=ids, steps=steps, odd=odd)


def lines_of_groups(
    queries: LineQueries,
    pieces: Sequence[bytes],
    columns: LineColumns,
    names: frozenset[str],
    file_steps: FileSteps = None,
) -> ScannedLines:
    """The lines of a block that may belong to some groups.

    Args:
        queries: Of a connection that nothing else uses meanwhile.
        pieces: Whole lines.
        columns: How to read them.
        file_steps: The step of each piece's file, [pieces]; None: files tell none.
        names: Names of groups within the run.

    Returns:
        The odd lines and those of the groups, as ``odd``.
    """
    lines, rows = _rows(queries, pieces, columns, file_steps)
    if rows is None:
        return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=np.arange(len(lines)))
    steps, in_step = to_numpy(rows["step"]).tolist(), rows["name"].to_pylist()
    is_wanted = [group_name(step, name or "") in names for step, name in zip(steps, in_step, strict=True)]
    is_odd = to_numpy(rows["is_odd"]).astype(np.bool_) | is_wanted
    is_odd[lines.with_commas] = True
    odd = np.flatnonzero(is_odd)
    return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=odd)


def _rows(
    queries: LineQueries, pieces: Sequence[bytes], columns: LineColumns, file_steps: FileSteps
) -> tuple[Lines, pa.Table | None]:
    """The lines of a block and what DuckDB says of them, a row a line; None where it cannot take the block."""
    import duckdb  # small logs do without it, and start sooner

    lines = Lines.of(pieces)
    try:
        shapes = common_shapes(lines, columns.paths)
        return lines, _read(queries, lines.to_arrow(file_steps), lines.num_keys, columns, shapes)
    except (duckdb.Error, UnicodeDecodeError) as error:  # its message quotes a line, which may be no text
        if isinstance(error, duckdb.BinderException | duckdb.ParserException) and "wildcards" not in str(error):
            raise  # the format's declaration is wrong; else the log has a key that DuckDB takes for a pattern
        return lines, None


def _read(
    queries: LineQueries,
    lines: pa.Table,
    num_keys: NDArray[np.int64],
    columns: LineColumns,
    shapes: Sequence[LineShape],
) -> pa.Table:
    """The rows of lines with so many keys, [lines]: of those that have one of the shapes, and of the others."""
    places, found, is_read = [], [], np.zeros(len(lines), dtype=np.bool_)
    for shape in shapes:
        at = np.flatnonzero(num_keys == shape.num_keys)
        rows = queries.rows(columns.of_shape(shape), _taken(lines, at))
        shaped = np.flatnonzero(to_numpy(rows["is_other"]) == 0)
        found.append(_taken(rows.drop_columns(["is_other"]), shaped))
        places.append(at[shaped])
        is_read[at[shaped]] = True
    if not is_read.all():
        places.append(np.flatnonzero(~is_read))
        found.append(_read_any(queries, _taken(lines, places[-1]), columns))
    return _taken(pa.concat_tables(found), np.argsort(np.concatenate(places), kind="stable"))


def _taken(rows: pa.Table, at: NDArray[np.int64]) -> pa.Table:
    """Some rows; all in order are not copied."""
    return rows if np.array_equal(at, np.arange(len(rows))) else rows.take(to_indices(at))


def _read_any(queries: LineQueries, lines: pa.Table, columns: LineColumns) -> pa.Table:
    """The rows of lines of any keys; a line is odd that names one twice, of which DuckDB takes the first."""
    rows = queries.rows(columns.of_lines(), lines)
    _, first, kind = np.unique(to_numpy(rows["keys"]), return_index=True, return_inverse=True)
    is_twice = f"list_bool_or([len(one) > list_unique(one) FOR one IN {columns.keys}])"
    query = f"SELECT coalesce({is_twice}, false)::UTINYINT AS is_twice FROM {NAME}"
    found = to_numpy(queries.rows(query, lines.take(to_indices(first)))["is_twice"])
    is_odd = pa.array(to_numpy(rows["is_odd"]) | found[kind])
    rows = rows.drop_columns(["keys"])
    return rows.set_column(rows.schema.get_field_index("is_odd"), "is_odd", is_odd)

"""Lines of JSON as columns: DuckDB parses all lines of a block at once, and says which of them are odd.

A line is plain where DuckDB is known to read it as the row reader does. An odd one (no JSON, no reward, a reward that
is text, a structure for an id, bytes that are not UTF-8) goes to the row reader, alone: it knows the reason. Two things
are known to differ: the row reader sets a line aside that names any key twice, here only the row's own keys count; and
DuckDB lets ``nan`` and ``inf`` in small letters pass, which JSON does not have, in cells that nothing is read from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_indices, to_numpy
from gradscope.rollouts.readers.scan.cut_lines import Lines
from gradscope.rollouts.readers.scan.line_queries import NAME, LineQueries
from gradscope.rollouts.readers.scan.parts import NOT_COMPARED, REWARD, Part, part_of_rows
from gradscope.rollouts.reward_table import UNKNOWN
from gradscope.rollouts.types import group_name

FileSteps = Sequence[int | None] | None
_NAN = "'NaN'::DOUBLE"
_ABSENT = {"num_tokens": f"{UNKNOWN}::BIGINT", "sample": f"{NOT_COMPARED}::UINTEGER"}
_NONE = np.zeros(0, dtype=np.int64)
_LARGEST = 10**15 - 1
"""The largest of whole numbers that are read as such: any that a log has, and far from where casts overflow."""
_KEY_OF_PATH = re.compile(r'\."(?:[^"\\]|\\.)*"|\.[^.\[]+|\[[0-9]+\]')
"""A part of a JSON path: a key, with or without quotes, or a place in a list."""
_DECIMAL_STEP = "[0-9]{1,15}([.]0*)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineColumns:
    """How the plain lines of a format become columns, and who reads the others.

    Expressions are DuckDB's; in them ``c[1]``, ``c[2]``, ... are the JSON texts at ``paths`` (null: nothing is there),
    ``line`` is the whole, ``file_step`` what the file tells, and ``derived`` names what several of them need.
    """

    paths: tuple[str, ...]
    """JSON paths."""
    step: str
    """A whole number; null makes the line odd."""
    group: str
    """The group's name within the step; null or "" makes the line odd."""
    prompt: tuple[str, ...]
    """What rows of one prompt have in common."""
    prompt_id: Callable[[Mapping[str, Any]], str] | str
    """The id of a row's prompt, as the row reader gives it: a function of the row, or an expression for a text, of
    which null makes the line odd. A function is called once a prompt, on a row that is parsed for it."""
    reward: str
    """The scalar reward, a number; null or not finite makes the line odd."""
    rewards: Mapping[str, str]
    """Reward function -> its reward; null or not finite: it has none."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Name -> expression."""
    plain: str = "true"
    """What else must hold of a plain line."""
    group_is_prompt: bool = False
    """Whether groups are told apart by their prompts alone: then the prompt's id is the group's name."""
    sample: str | None = None
    """What tells a rollout from the others of its group; None: nothing does."""
    further: Mapping[str, str] = field(default_factory=dict)
    """``seconds`` or ``num_tokens`` of a rollout: numbers, null where they are not known."""
    file_step: Callable[[Path], int | None] | None = None
    """The step of a file; None: files tell none."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a part's columns."""
        sample = () if self.sample is None else ("sample",)
        return ("reward", *(REWARD + name for name in self.rewards), *self.further, *sample)

    @property
    def objects(self) -> tuple[str, ...]:
        """The JSON paths of the objects that something is read from, the row itself among them."""
        found = {"$": None}
        for path in self.paths:
            keys = list(_KEY_OF_PATH.finditer(path))
            found |= dict.fromkeys(path[: key.start()] for key in keys if not key[0].startswith("["))
        return tuple(found)

    @property
    def keys(self) -> str:
        """The expression for the keys of these objects, a list each."""
        return f"TRY(json_keys(line, [{', '.join(map(quoted, self.objects))}]))"

    @property
    def query(self) -> str:
        """The query over a block's lines."""
        found = {"step": self.step, "name": self.group, "prompt": f"hash({', '.join(self.prompt)})"}
        found |= {"prompt_id": self.prompt_id} if isinstance(self.prompt_id, str) else {}
        found |= {f"x{at}": expression for at, expression in enumerate(self._expressions.values())}
        named = ("prompt_id",) if isinstance(self.prompt_id, str) else ()
        inner = ", ".join(f"{expression} AS {name}" for name, expression in found.items())
        numbers = [f"coalesce(x{at}, {_ABSENT.get(name, _NAN)}) AS x{at}" for at, name in enumerate(self._expressions)]
        known = ("isfinite(x0)", "step IS NOT NULL", "name <> ''", *(f"{name} IS NOT NULL" for name in named))
        paths = ", ".join(quoted(path) for path in self.paths)
        derived = "".join(f", {expression} AS {name}" for name, expression in self.derived.items())
        return f"""
            SELECT coalesce(step, 0) AS step, name, prompt, {", ".join((*named, *numbers))}, keys,
                   (NOT coalesce({" AND ".join(("is_plain", *known))}, false))::UTINYINT AS is_odd
            FROM (SELECT {inner}, {self.plain} AS is_plain, hash({self.keys}) AS keys
                  FROM (SELECT *{derived}
                        FROM (SELECT *, TRY(json_extract(line, [{paths}]))::VARCHAR[] AS c FROM {NAME})))"""

    @property
    def _expressions(self) -> dict[str, str]:
        """Column -> expression, the scalar reward's first; of columns that are the same the first."""
        sample = f"if({self.sample} IS NOT NULL, (hash({self.sample}) >> 32)::UINTEGER, NULL)"
        compared = {} if self.sample is None else {"sample": sample}
        rewards = {REWARD + name: finite(cell) for name, cell in self.rewards.items() if cell != self.reward}
        return {"reward": self.reward, **rewards, **self.further, **compared}

    def columns_of(self, rows: pa.Table) -> dict[str, NDArray[Any]]:
        """The columns of a part from the rows of the query, row by row, [R] each."""
        found = {name: to_numpy(rows[f"x{at}"]) for at, name in enumerate(self._expressions)}
        return {name: found.get(name, found["reward"]) for name in self.columns}


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
    is_odd[lines.with_commas()] = True
    keys, first = np.unique(to_numpy(rows["keys"]), return_index=True)
    one_of_each = lines.to_arrow(file_steps).take(to_indices(first))
    is_odd |= np.isin(to_numpy(rows["keys"]), keys[_has_key_twice(queries, one_of_each, columns)])
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
    prompt = to_numpy(rows["prompt"])[first]
    return ScannedLines(lines=lines, part=part, prompt=prompt, prompt_ids=ids, steps=steps, odd=odd)


def _has_key_twice(queries: LineQueries, lines: pa.Table, columns: LineColumns) -> NDArray[np.bool_]:
    """Whether lines name a key twice: DuckDB takes the first, the row reader sets the line aside."""
    is_twice = f"list_bool_or([len(one) > list_unique(one) FOR one IN {columns.keys}])"
    found = queries.rows(f"SELECT coalesce({is_twice}, false)::UTINYINT AS is_twice FROM {NAME}", lines)
    return to_numpy(found["is_twice"]).astype(np.bool_)


def _rows(
    queries: LineQueries, pieces: Sequence[bytes], columns: LineColumns, file_steps: FileSteps
) -> tuple[Lines, pa.Table | None]:
    """The lines of a block and the rows of the query, one a line; None where DuckDB cannot take the block."""
    import duckdb  # small logs do without it, and start sooner

    lines = Lines.of(pieces)
    try:
        return lines, queries.rows(columns.query, lines.to_arrow(file_steps))
    except (duckdb.Error, UnicodeDecodeError) as error:  # its message quotes a line, which may be no text
        if isinstance(error, duckdb.BinderException | duckdb.ParserException) and "wildcards" not in str(error):
            raise  # the format's declaration is wrong; else the log has a key that DuckDB takes for a pattern
        return lines, None


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
        file_steps: The step of each piece's file, [pieces]; None: files tell none.

    Returns:
        The odd lines and those of the groups, as ``odd``.
    """
    lines, rows = _rows(queries, pieces, columns, file_steps)
    if rows is None:
        return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=np.arange(len(lines)))
    steps, in_step = to_numpy(rows["step"]).tolist(), rows["name"].to_pylist()
    is_wanted = [group_name(step, name or "") in names for step, name in zip(steps, in_step, strict=True)]
    is_odd = to_numpy(rows["is_odd"]).astype(np.bool_) | is_wanted
    is_odd[lines.with_commas()] = True
    odd = np.flatnonzero(is_odd)
    return ScannedLines(lines=lines, part=None, prompt=_NONE, steps=_NONE, odd=odd)


def numeric(cell: str) -> str:
    """The expression for a JSON text's number, null where it is none; booleans count 1 and 0, as rewards do."""
    return f"coalesce(try_cast({cell} AS DOUBLE), CASE {cell} WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END)"


def finite(expression: str) -> str:
    """The expression for a number where it is finite, else null."""
    return f"CASE WHEN isfinite({expression}) THEN {expression} END"


def whole(cell: str) -> str:
    """The expression for a JSON text that is a whole number from 0 on in digits, not ``3.0``; else null."""
    value = f"try_cast({cell} AS BIGINT)"
    return f"CASE WHEN {value}::VARCHAR = {cell} AND {value} BETWEEN 0 AND {_LARGEST} THEN {value} END"


def step_number(cell: str) -> str:
    """The expression for a JSON text that is a step for ``whole_number``: also ``3.0`` and ``"3"``; else null."""
    is_step = f"regexp_full_match({cell}, '{_DECIMAL_STEP}|\"{_DECIMAL_STEP}\"|[0-9]{{1,6}}[eE][+]?[0-9]')"
    # Nearly every step is plain digits. What the rest names twice DuckDB would work out for all rows, so it does not.
    return f"coalesce({whole(cell)}, CASE WHEN {is_step} THEN trim({cell}, '\"')::DOUBLE::BIGINT END)"


def text(cell: str) -> str:
    """The expression for a JSON text as ``text_of`` tells it: of a string, or of a whole number; else null."""
    string = f"CASE WHEN contains({cell}, '\\') THEN {cell}->>'$' ELSE substr({cell}, 2, length({cell}) - 2) END"
    number = f"CASE WHEN regexp_full_match({cell}, '0|-?[1-9][0-9]{{0,14}}') THEN {cell} END"
    return f"CASE WHEN starts_with({cell}, '\"') THEN {string} ELSE {number} END"


def is_list_of_ids(cell: str) -> str:
    """The expression for whether a JSON text is a list of whole numbers from 0 on."""
    # Whatever else a list may hold has one of these, and they are found many times faster than a pattern.
    others = " OR ".join(f"contains({cell}, '{letter}')" for letter in (*'.eEna"{-', "[[", ",["))
    return f"(starts_with({cell}, '[') AND NOT ({others}))"


def num_commas(cell: str) -> str:
    """The expression for how many commas a text has."""
    return f"(strlen({cell}) - strlen(replace({cell}, ',', '')))"


def num_numbers(cell: str) -> str:
    """The expression for the length of a JSON text that is a flat list, not an empty one, without text."""
    return f"({num_commas(cell)} + 1)"


def is_flat(cell: str) -> str:
    """The expression for whether a JSON text is a flat list without text, which is not empty."""
    # A second look at the whole line for its length would cost as much as the first one.
    others = " OR ".join(f"contains({cell}, '{letters}')" for letters in ('"', "[[", ",["))
    return f"(starts_with({cell}, '[') AND {cell} <> '[]' AND NOT ({others}))"


def ids_digest(cell: str) -> str:
    """The expression for the ``digest`` of a list of whole numbers from its JSON text."""
    return f"left(sha256('[' || replace({cell}, ',', ', ') || ']'), 16)"


def member(*names: str) -> str:
    """The JSON path of a key of a row, or of a key of its value, ..., whatever letters they have."""
    escaped = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "$" + "".join(f'."{name}"' for name in escaped)


def quoted(value: str) -> str:
    """The literal of a text."""
    escaped = value.replace("'", "''")
    return f"'{escaped}'"

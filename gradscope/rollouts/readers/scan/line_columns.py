"""How the lines of a format become columns: which JSON paths it reads, and the expressions over what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_numpy
from gradscope.rollouts.readers.scan.line_queries import NAME
from gradscope.rollouts.readers.scan.line_shapes import ROW, LineShape, objects_of
from gradscope.rollouts.readers.scan.parts import NOT_COMPARED, REWARD
from gradscope.rollouts.reward_table import UNKNOWN

_NAN = "'NaN'::DOUBLE"
_ABSENT = {"num_tokens": f"{UNKNOWN}::BIGINT", "sample": f"{NOT_COMPARED}::UINTEGER"}
_LARGEST = 10**15 - 1
"""The largest of whole numbers that are read as such: any that a log has, and far from where casts overflow."""
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
    prompt: tuple[str, ...] = ()
    """What rows of one prompt have in common; empty: what stands at ``prompt_paths``."""
    prompt_paths: tuple[str, ...] = ()
    """JSON paths that nothing else needs, so that only the first row of each group is asked."""
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
    """``seconds``, ``advantage`` or ``num_tokens`` of a rollout: numbers, null where they are not known."""
    file_step: Callable[[Path], int | None] | None = None
    """The step of a file; None: files tell none."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a part's columns."""
        sample = () if self.sample is None else ("sample",)
        return ("reward", *(REWARD + name for name in self.rewards), *self.further, *sample)

    @property
    def keys(self) -> str:
        """The expression for the keys of a line and of the objects in it that something is read from, a list each."""
        paths = (*self.paths, *self.prompt_paths)
        objects = dict.fromkeys(("$", *(found for path in paths for found in objects_of(path))))
        return f"TRY(json_keys(line, [{', '.join(map(quoted, objects))}]))"

    def of_lines(self) -> str:
        """The query over lines of any keys; ``keys`` is a digest of theirs."""
        paths = ", ".join(map(quoted, self.paths))
        cells = f"SELECT *, TRY(json_extract(line, [{paths}]))::VARCHAR[] AS c, hash({self.keys}) AS keys FROM {NAME}"
        return self._query(cells, "keys")

    def of_shape(self, shape: LineShape) -> str:
        """The query over lines that have the keys of a shape; ``is_other`` tells the rest, of which it says nothing."""
        row = f"TRY(json_transform_strict(line, {quoted(shape.structure)}))"
        is_other = " OR ".join(f"{cell} IS NULL" for cell in shape.objects)
        cells = f"row({', '.join(shape.cells)}) AS c, ({is_other})::UTINYINT AS is_other"
        return self._query(f"SELECT *, {cells} FROM (SELECT *, {row} AS {ROW} FROM {NAME})", "is_other")

    def of_first_lines(self) -> str:
        """The query over the first lines of groups for what is at ``prompt_paths``, as ``prompt``."""
        cells = ", ".join(f"c[{at}]" for at in range(1, len(self.prompt_paths) + 1))
        paths = ", ".join(map(quoted, self.prompt_paths))
        return f"SELECT hash({cells}) AS prompt FROM (SELECT json_extract(line, [{paths}])::VARCHAR[] AS c FROM {NAME})"

    def _query(self, cells: str, also: str) -> str:
        """The query over lines with their cells."""
        prompt = {"prompt": f"hash({', '.join(self.prompt)})"} if self.prompt else {}
        prompt |= {"prompt_id": self.prompt_id} if isinstance(self.prompt_id, str) else {}
        found = {"step": self.step, "name": self.group, **prompt}
        found |= {f"x{at}": expression for at, expression in enumerate(self._expressions.values())}
        inner = ", ".join(f"{expression} AS {name}" for name, expression in found.items())
        numbers = [f"coalesce(x{at}, {_ABSENT.get(name, _NAN)}) AS x{at}" for at, name in enumerate(self._expressions)]
        known = ("isfinite(x0)", "step IS NOT NULL", "name <> ''", *(f"{name} IS NOT NULL" for name in prompt))
        derived = "".join(f", {expression} AS {name}" for name, expression in self.derived.items())
        return f"""
            SELECT coalesce(step, 0) AS step, {", ".join(("name", *prompt, *numbers, also))},
                   (NOT coalesce({" AND ".join(("is_plain", *known))}, false))::UTINYINT AS is_odd
            FROM (SELECT {inner}, {self.plain} AS is_plain, {also} FROM (SELECT *{derived} FROM ({cells})))"""

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
    others = has_any(cell, *'.eEna"{-', "],", "]]")
    return f"(starts_with({cell}, '[') AND NOT ({others}))"


def has_any(cell: str, *parts: str) -> str:
    """The expression for whether a text has any of some parts; fast where their first letters are rare in it."""
    return " OR ".join(f"contains({cell}, '{part}')" for part in parts)


def num_commas(cell: str) -> str:
    """The expression for how many commas a text has."""
    return f"(strlen({cell}) - strlen(replace({cell}, ',', '')))"


def num_numbers(cell: str) -> str:
    """The expression for the length of a JSON text that is a flat list, not an empty one, without text."""
    return f"({num_commas(cell)} + 1)"


def is_flat(cell: str) -> str:
    """The expression for whether a JSON text is a flat list without text, which is not empty."""
    # A second look at the whole line for its length would cost as much as the first one.
    others = has_any(cell, '"', "{", "],", "]]")
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

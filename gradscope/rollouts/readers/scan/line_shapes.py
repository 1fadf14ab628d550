"""Shapes of lines: the keys that lines have, so that one parse both takes the cells and sees every key named twice.

DuckDB's strict transform has a row for a line only if the line has the keys of a structure, each once, and so the
objects in it. A line that has as many keys in all then has no others. To list the keys of lines instead takes a second
parse of each. What a shape's cells say is what ``json_extract`` says of the same paths.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.scan.cut_lines import Lines

ROW = "shaped"
"""What cells are taken from: the row of the strict transform."""
_NUM_SEEN = 16
"""Lines of a block whose keys are looked at."""
_EVERY = 64
"""Of so many lines at most one is looked at, since Python takes some ten times as long for a line as DuckDB."""
_FEWEST = 0.2
"""The share of them that must have a shape for a pass over such lines to pay."""
_MOST_KEYS = 200
_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+")
"""Keys that need no escape in JSON or in the names of columns."""
_PART_OF_PATH = re.compile(r'\."(?P<quoted>(?:[^"\\]|\\.)*)"|\.(?P<bare>[^.\[]+)|\[(?P<place>[0-9]+)\]')
"""A part of a JSON path: a key, with or without quotes, or a place in a list."""

Path = tuple[str | int, ...]
Structure = dict[str, Any]
"""Key -> "JSON" where it is read, "NULL" where it is not, the structure of an object, or a list of "JSON"."""


@dataclass(frozen=True, slots=True)
class LineShape:
    """What lines of one shape are asked for."""

    structure: str
    """As the strict transform takes it."""
    num_keys: int
    """How many keys such a line has, those of its objects included."""
    objects: tuple[str, ...]
    """The expressions for the row and the objects within it: a line of which one is null has another shape."""
    cells: tuple[str, ...]
    """The expression for the JSON text at each path; null where nothing is there."""


def common_shapes(lines: Lines, paths: Sequence[str]) -> list[LineShape]:
    """The shapes that many lines of a block have.

    Args:
        lines: The block.
        paths: The JSON paths that are read, without wildcards.

    Returns:
        Shapes, no two of them with the same number of keys: the strict transform takes some twenty times as long for a
        line that it refuses. Of lines without a shape: with objects in lists, an object that is read as a whole, or a
        key of unusual letters.
    """
    read = [_parts_of(path) for path in paths]
    if any(isinstance(part, int) for path in read for part in path[:-1]):
        return []
    seen = range(0, len(lines), max(_EVERY, len(lines) // _NUM_SEEN))
    count: dict[int, Counter[LineShape | None]] = defaultdict(Counter)
    for at in seen:
        num_keys, shape = int(lines.num_keys[at]), _shape_of(lines[at], read)
        count[num_keys][shape if shape and shape.num_keys == num_keys else None] += 1
    only = (shapes for shapes in count.values() if len(shapes) == 1 and shapes.total() >= _FEWEST * len(seen))
    return [shape for shapes in only for shape in shapes if shape is not None]


def objects_of(path: str) -> Iterator[str]:
    """The JSON paths of the objects along a path, the row itself the first."""
    for part in _PART_OF_PATH.finditer(path):
        if part["place"] is None:
            yield path[: part.start()]


def _parts_of(path: str) -> Path:
    """The keys and places of a JSON path."""
    return tuple(
        int(part["place"]) if part["place"] else part["bare"] or re.sub(r"\\(.)", r"\1", part["quoted"])
        for part in _PART_OF_PATH.finditer(path)
    )


def _shape_of(line: bytes, read: Sequence[Path]) -> LineShape | None:
    row = parse_line(line)
    if isinstance(row, str) or (structure := _structure_of(row, read)) is None:
        return None
    objects = dict(_objects(ROW, structure))
    if (num_keys := sum(objects.values())) > _MOST_KEYS:
        return None
    return LineShape(
        structure=json.dumps(structure),
        num_keys=num_keys,
        objects=tuple(objects),
        cells=tuple(_cell(path, structure) for path in read),
    )


def _structure_of(value: Mapping[str, Any], read: Sequence[Path]) -> Structure | None:
    """The structure of an object from which paths are read; None where it has none."""
    # DuckDB does not tell columns apart whose names are alike but for capitals
    is_plain = all(map(_PLAIN_KEY.fullmatch, value)) and len({key.lower() for key in value}) == len(value)
    if not value or not is_plain:
        return None
    # sorted, for lines with the same keys in another order have the same shape
    found = {key: _type_of(value[key], [path[1:] for path in read if path[0] == key]) for key in sorted(value)}
    return None if None in found.values() else found


def _type_of(value: Any, read: Sequence[Path]) -> str | list[str] | Structure | None:
    """The type of what has a key, of which paths are read that go on from there."""
    if any(read) and all(len(path) == 1 and isinstance(path[0], int) for path in read):
        return ["JSON"]
    if isinstance(value, Mapping) and all(path and isinstance(path[0], str) for path in read):
        return _structure_of(value, read) if value else "NULL"
    return None if any(read) else "JSON" if read else "NULL"


def _objects(cell: str, structure: Structure) -> Iterator[tuple[str, int]]:
    """The expressions for an object and those within it, each with the number of its own keys."""
    yield cell, len(structure)
    for key, one in structure.items():
        if isinstance(one, dict):
            yield from _objects(f'{cell}."{key}"', one)


def _cell(path: Path, structure: Any) -> str:
    """The expression for the JSON text at a path; a JSON null is the text ``null``, as ``json_extract`` has it."""
    cell = ROW
    for part in path:
        if isinstance(part, int):
            return f"CASE WHEN len({cell}) > {part} THEN coalesce({cell}[{part + 1}]::VARCHAR, 'null') END"
        if not isinstance(structure, dict) or part not in structure:
            return "NULL::VARCHAR"
        cell, structure = f'{cell}."{part}"', structure[part]
    return f"coalesce({cell}::VARCHAR, 'null')"

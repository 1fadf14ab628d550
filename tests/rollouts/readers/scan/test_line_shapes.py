from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.scan.cut_lines import Lines
from gradscope.rollouts.readers.scan.line_columns import quoted
from gradscope.rollouts.readers.scan.line_shapes import ROW, LineShape, common_shapes, objects_of

PATHS = ("$.id", '$."info"."x"', "$.ids[0]", "$.ids[1]", "$.absent.x", '$."a b/c"')
ROWS = {"id": 1, "info": {"x": "a", "y": 2}, "ids": [[1, 2], None], "a b/c": None, "unread": {}}


def shapes_of(rows: Sequence[Any], paths: Sequence[str] = PATHS) -> list[LineShape]:
    """The shapes of a block of which 64 lines in a row are alike, so that the first of them is seen."""
    return common_shapes(Lines.of([b"".join(64 * (json.dumps(row).encode() + b"\n") for row in rows)]), paths)


def cells_of(shape: LineShape, line: str) -> list[str | None] | None:
    """What a shape's query tells of a line; None: it has another shape."""
    row = f"TRY(json_transform_strict(line, {quoted(shape.structure)}))"
    is_other = " OR ".join(f"{cell} IS NULL" for cell in shape.objects)
    query = f"SELECT {is_other}, [{', '.join(shape.cells)}] FROM (SELECT {row} AS {ROW} FROM (SELECT ? AS line))"
    found: tuple[bool, list[str | None]] = duckdb.execute(query, [line]).fetchall()[0]
    num_keys = Lines.of([line.encode() + b"\n"]).num_keys[0]
    return None if found[0] or num_keys != shape.num_keys else found[1]


def extracted(line: str, paths: Sequence[str] = PATHS) -> list[str | None]:
    found: list[str | None] = duckdb.execute("SELECT json_extract(?, ?)::VARCHAR[]", [line, paths]).fetchall()[0][0]
    return found


def test_a_shape_has_the_cells_that_the_paths_have() -> None:
    (shape,) = shapes_of([ROWS])
    assert shape.num_keys == 7
    assert cells_of(shape, json.dumps(ROWS)) == ["1", '"a"', "[1,2]", "null", None, "null"]
    assert cells_of(shape, json.dumps(ROWS)) == extracted(json.dumps(ROWS))


@pytest.mark.parametrize(
    "other",
    [
        '{"id": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0}',
        '{"id": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0, "unread": {"more": 1}}',
        '{"id": 1, "info": {"x": "a"}, "ids": [], "a b/c": 0, "unread": {"more": 1}}',
        '{"id": 1, "info": null, "ids": [], "a b/c": 0, "unread": 0, "more": 1, "more": 2}',
        '{"id": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0, "a b/c": 1}',
        '{"id": 1, "info": {"x": "a", "x": 2}, "ids": [], "a b/c": 0, "unread": 0}',
        '{"id": 1, "info": {"x": "a", "y": 2}, "ids": 5, "a b/c": 0, "unread": 0}',
        '{"ID": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0, "unread": 0}',
        '[{"id": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0, "unread": 0}]',
        '{"id": 1, "info": {"x": "a", "y": 2}, "ids": [], "a b/c": 0, "unread": 0',
        "null",
        "",
    ],
)
def test_a_line_of_other_keys_has_another_shape(other: str) -> None:
    assert cells_of(shapes_of([ROWS])[0], other) is None


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_line_of_the_shape_has_its_keys_once_and_the_cells_of_json_extract(data: st.DataObject) -> None:
    (shape,) = shapes_of([ROWS])
    key = st.sampled_from(["id", "info", "ids", "a b/c", "unread", "x", "ID", "i\\u0064"])
    objects = ['{"x": 1, "y": 2}', '{"x": null, "y": "\\"y\\": :"}', '{"x" : 0}', "{}"]
    value = st.sampled_from([*objects, "null", "[]", "[1, [2.50]]", '"a\\\\": 7'])
    keys = data.draw(st.permutations(["id", "info", "ids", "a b/c", "unread"]) | st.lists(key, max_size=7))
    line = "{" + ", ".join(f'"{name}" : {data.draw(value)}' for name in keys) + "}"
    cells, row = cells_of(shape, line), parse_line(line.encode())
    if cells is not None:
        assert not isinstance(row, str)
        assert row.keys() == ROWS.keys()
        assert cells == extracted(line)


@pytest.mark.parametrize(
    ("row", "paths"),
    [
        ({"prompt": [{"role": "user"}]}, ["$.prompt"]),
        ({"prompt": [[{"role": "user"}]]}, ["$.other"]),
        ({"info": {"x": 1}}, ["$.info", "$.info.x"]),
        ({"info": 3}, ["$.info.x"]),
        ({"info": [{"x": 1}]}, ["$.info[0].x"]),
        ({"id": 1, "ID": 2}, ["$.id"]),
        ({"id": 1, "": 2}, ["$.id"]),
        ({"id": 1, "é": 2}, ["$.id"]),
        ({"id": 1, 'quo"te': 2}, ["$.id"]),
        ({"id": 1, "unread": {"é": 2}}, ["$.id"]),
        (dict.fromkeys(map(str, range(300)), 0), ["$.id"]),
        ({}, ["$.id"]),
        ([1], ["$.id"]),
    ],
)
def test_lines_without_a_shape(row: Any, paths: Sequence[str]) -> None:
    assert shapes_of([row], paths) == []


def test_shapes_differ_in_their_number_of_keys() -> None:
    few, many = {"id": 1}, {"id": 1, "more": 2}
    assert [shape.num_keys for shape in shapes_of([few, many], ["$.id"])] == [1, 2]
    assert [shape.num_keys for shape in shapes_of([few, {"other": 1}, many], ["$.id"])] == [2]
    assert [shape.num_keys for shape in shapes_of([few, *9 * [many]], ["$.id"])] == [2]


def test_lines_with_their_keys_in_another_order_have_the_same_shape() -> None:
    turned = dict(reversed(ROWS.items()))
    (shape,) = shapes_of([ROWS, turned])
    assert cells_of(shape, json.dumps(turned)) == extracted(json.dumps(turned))


def test_objects_along_a_path() -> None:
    assert list(objects_of('$."a.b"[0].c."d\\"e"')) == ["$", '$."a.b"[0]', '$."a.b"[0].c']


def test_no_key_is_missed_whatever_stands_around_it() -> None:
    lines = ['{"a" \t: {"b":1}, "c": ": \\": :"}', '{"a\\\\":1}', '{"a": "x\\\\\\":"}', '"a"', "{}", ' : "b']
    assert Lines.of(["\n".join(lines).encode()]).num_keys.tolist() == [4, 1, 2, 0, 0, 0]

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.parsing.nested_cells import whole_number
from gradscope.rollouts.readers.parsing.scalars import parse_reward, text_of
from gradscope.rollouts.readers.scan.line_columns import (
    finite,
    is_flat,
    member,
    num_numbers,
    numeric,
    step_number,
    text,
    whole,
)

CELLS = [
    *(
        "0",
        "1",
        "-1",
        "17",
        "1.0",
        "1.5",
        "-0.0",
        "0.1",
        "1e3",
        "1E-3",
        "1e999",
        "-1e999",
        "123456789012345678",
        "1e17",
    ),
    *("9007199254740992", "9007199254740993", "99999999999999999999", "true", "false", "null", "NaN", "Infinity"),
    *("-Infinity", '""', '"1"', '"1.5"', '" 1"', '"1_0"', '"a"', '"null"', '"NaN"', '"true"', '"\\u0041"', '"a\\nb"'),
    *('"\\"1\\""', '"é"', '"[1]"', "[]", "[1]", "{}", '{"a": 1}', '"\\u0000"', '"0x1"', '"1e2"', '"inf"', '"1 "'),
]
"""Values of JSON, as they stand in a file."""


def evaluated(expression: str, cell: str) -> Any:
    query = f"SELECT {expression} FROM (SELECT json_extract(line, ['$.x'])::VARCHAR[] AS c FROM (SELECT ? AS line))"
    return duckdb.execute(query, [f'{{"x": {cell}}}']).fetchall()[0][0]


@pytest.mark.parametrize("cell", CELLS)
def test_expressions_know_a_cell_as_the_row_reader_does_or_not_at_all(cell: str) -> None:
    row = parse_line(f'{{"x": {cell}}}'.encode())
    assert not isinstance(row, str)
    value = row["x"]
    reward = parse_reward(value)
    assert evaluated(finite(numeric("c[1]")), cell) == (None if isinstance(reward, str) else reward)
    assert evaluated(whole("c[1]"), cell) in (None, value if type(value) is int else None)
    assert evaluated(step_number("c[1]"), cell) in (None, whole_number(value))
    assert evaluated(text("c[1]"), cell) in (None, text_of(value) if isinstance(value, str | int) else None)


@pytest.mark.parametrize("cell", ["0", "17", "3", "123456789012345"])
def test_whole_numbers_are_known(cell: str) -> None:
    assert evaluated(whole("c[1]"), cell) == int(cell)
    assert evaluated(text("c[1]"), cell) == cell


@pytest.mark.parametrize(("cell", "step"), [("3", 3), ("3.0", 3), ('"3"', 3), ("-2", None), ("1e2", 100)])
def test_steps_are_known(cell: str, step: int | None) -> None:
    assert evaluated(step_number("c[1]"), cell) == step


@settings(max_examples=50, deadline=None)
@given(number=st.floats() | st.integers(-(10**30), 10**30))
def test_numbers_are_the_same_to_the_last_bit(number: float) -> None:
    reward = parse_reward(number)
    assert evaluated(finite(numeric("c[1]")), json.dumps(number)) == (None if isinstance(reward, str) else reward)


@settings(max_examples=50, deadline=None)
@given(value=st.text(st.characters(exclude_categories=("Cs",)), max_size=8), escaped=st.booleans())
def test_text_is_the_same_however_it_is_written(value: str, escaped: bool) -> None:
    found = evaluated(text("c[1]"), json.dumps(value, ensure_ascii=escaped))
    assert found == value


@pytest.mark.parametrize(("cell", "count"), [("[1]", 1), ("[1, 0.5, null]", 3), ("[1e-7, NaN, true]", 3)])
def test_flat_lists_without_text_are_counted(cell: str, count: int) -> None:
    assert evaluated(is_flat("c[1]"), cell)
    assert evaluated(num_numbers("c[1]"), cell) == count


@pytest.mark.parametrize(
    "cell", ["[]", '["1,2"]', "[[1], 2]", "[1, [2, 3]]", '[{"a": 1}]', "[{}, 1]", "7", '"[1]"', "null"]
)
def test_other_lists_are_not_flat(cell: str) -> None:
    assert evaluated(is_flat("c[1]"), cell) is False


@pytest.mark.parametrize("name", ["a", "a.b", 'quo"te', "back\\slash", "it's", "[0]", "$", "?", "é", " "])
def test_a_path_finds_a_key_of_any_letters(name: str) -> None:
    line = json.dumps({name: {name: 7}, "other": 1})
    found = duckdb.execute("SELECT json_extract(?, ?)::VARCHAR", [line, member(name, name)]).fetchall()
    assert found == [("7",)]

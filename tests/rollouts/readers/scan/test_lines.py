from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pytest

from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.scan.line_columns import (
    LineColumns,
    member,
    numeric,
    text,
    whole,
)
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.lines import ScannedLines, lines_of_groups, scan_lines
from gradscope.rollouts.readers.scan.parts import NOT_COMPARED


def scanned(pieces: Sequence[bytes], columns: LineColumns, file_steps: Sequence[int] | None = None) -> ScannedLines:
    return scan_lines(LineQueries(duckdb.connect()), pieces, columns, file_steps)


COLUMNS = LineColumns(
    paths=(member("step"), member("group"), member("reward"), member("extra"), member("tokens"), member("id")),
    step=whole("c[1]"),
    group=text("c[2]"),
    prompt=("c[2]",),
    prompt_id=lambda row: str(row["group"]),
    reward=numeric("c[3]"),
    rewards={"reward": numeric("c[3]"), "extra": numeric("c[4]")},
    derived={"length": "try_cast(c[5] AS BIGINT)"},
    further={"num_tokens": "length"},
    sample=text("c[6]"),
    plain="coalesce(c[4] <> '13', true)",
)


def test_an_expression_may_tell_the_ids_of_prompts() -> None:
    columns = replace(COLUMNS, prompt_id="'p' || nullif(c[4], '5')")
    found = scanned([line(extra=1) + line() + line(extra=5) + line(group="b", extra=2)], columns)
    assert found.odd.tolist() == [1, 2]
    assert found.prompt_ids == ["p1", "p2"]


def line(**cells: Any) -> bytes:
    return json.dumps({"step": 1, "group": "a", "reward": 1.0} | cells).encode() + b"\n"


def test_plain_lines_become_columns_and_odd_ones_are_named() -> None:
    data = [
        line(extra=0.5, tokens=3, id=1),
        line(group="b", extra="x"),
        b"{\n",
        line(reward=0, id=2),
        line(extra=13),
        line(group=""),
        line(reward=math.nan),
        line(step=1.5),
    ]
    found = scanned([b"".join(data[:3]), b"".join(data[3:])], COLUMNS)
    assert found.odd.tolist() == [2, 4, 5, 6, 7]
    assert found.part is not None
    assert (found.part.place.tolist(), found.part.size.tolist()) == ([0, 1], [2, 1])
    assert found.part.group.to_pylist() == ["a", "b"]
    assert len(found.prompt) == 2
    assert tuple(found.part.columns) == COLUMNS.columns
    np.testing.assert_array_equal(found.part.columns["reward"], [1.0, 0.0, 1.0])
    assert found.part.columns["reward"] is found.part.columns["reward/reward"]
    np.testing.assert_array_equal(found.part.columns["reward/extra"], [0.5, np.nan, np.nan])
    assert found.part.columns["num_tokens"].tolist() == [3, -1, -1]
    samples = found.part.columns["sample"]
    assert samples.dtype == np.uint32
    assert len(set(samples.tolist())) == 3
    assert samples[2] == NOT_COMPARED


NO_JSON = [
    *("[1,]", "[1,\t]", "[1,  \r]", '{"a": 1,}', "1,", "1,  ", "{'a': 1}", "01", "1."),
    *("+1", '"\t"', "True", '"\\x"', "[1,,2]", "-", "1e"),
]


@pytest.mark.parametrize("cell", NO_JSON)
def test_what_is_no_json_makes_a_line_odd_although_duckdb_may_let_it_pass(cell: str) -> None:
    wrong = line(x=0).replace(b'"x": 0', b'"x": ' + cell.encode())
    assert isinstance(parse_line(wrong), str)
    found = scanned([line() + wrong + line()], COLUMNS)
    assert found.odd.tolist() == [1]


@pytest.mark.parametrize("cell", ["nan", "-inf", "INFINITY"])
def test_numbers_that_json_does_not_have_count_only_where_nothing_is_read_from_them(cell: str) -> None:
    unread = line(x=0).replace(b'"x": 0', b'"x": ' + cell.encode())
    read = line(reward=77).replace(b"77", cell.encode())
    assert all(isinstance(parse_line(text), str) for text in (unread, read))
    assert scanned([unread + read], COLUMNS).odd.tolist() == [1]


@pytest.mark.parametrize(
    "cell", ["NaN", "-Infinity", "[NaN, Infinity]", '"nan"', '"inf and nan"', '{"nan": 1}', '"a,b"']
)
def test_what_is_json_to_the_row_reader_stays_plain(cell: str) -> None:
    unusual = line(x=0).replace(b'"x": 0', b'"x": ' + cell.encode())
    assert not isinstance(parse_line(unusual), str)
    assert scanned([unusual], COLUMNS).odd.tolist() == []


@pytest.mark.parametrize(
    "more",
    [
        b'"reward": 1',
        b'"x": 1, "x": 2',
        b'"x": nan, "x": 1',
        b'"a, b": 1, "a, b": 1',
        b'"": 0, "": 0',
        b'"\\u0078": 1, "x": 1',
    ],
)
def test_a_key_that_a_line_names_twice_makes_it_odd(more: bytes) -> None:
    twice = line().replace(b"{", b"{" + more + b", ", 1)
    assert isinstance(parse_line(twice), str)
    lacks = line().replace(b'"extra"', b'"other"')
    found = scanned([lacks + line() + twice + line(x=0) + b'{"half": ' + b"\n", lacks + twice], COLUMNS)
    assert found.odd.tolist() == [2, 4, 6]


def test_a_key_that_duckdb_takes_for_a_pattern_makes_every_line_odd() -> None:
    columns = replace(COLUMNS, paths=(*COLUMNS.paths, member("*")))
    has_key = line().replace(b"{", b'{"*": 1, "": 0, ', 1)
    assert scanned([has_key + line()], columns).odd.tolist() == [0, 1]
    assert lines_of_groups(LineQueries(duckdb.connect()), [has_key], columns, frozenset()).odd.tolist() == [0]


@pytest.mark.parametrize(
    "more",
    ['"reward": 0', '"rew\\u0061rd": 0', '"id": 1, "id": 2', '"unread": 1, "unread": 2', '"info": {"x": 1, "x": 2}'],
)
def test_a_key_twice_makes_a_line_odd_whatever_the_others_have(more: str) -> None:
    twice = line()[:-2] + f", {more}}}\n".encode()
    assert isinstance(parse_line(twice), str)
    columns = replace(COLUMNS, paths=(*COLUMNS.paths, member("info", "x")))
    inner = {"step": 1, "group": 2, "reward": 3, "id": 4, "x": 5}
    others = [line(), line(id=1), *(line(info=inner, unread={"unread": 1}, id=at) for at in range(70))]
    assert scanned([b"".join([*others, twice, line()])], columns).odd.tolist() == [len(others)]


def test_a_key_twice_in_an_object_that_nothing_is_read_from_is_let_pass() -> None:
    twice = line(info=0).replace(b"0}", b'{"x": 1, "x": 2}}')
    assert isinstance(parse_line(twice), str)
    assert scanned([line(info={"x": 1}) + twice], COLUMNS).odd.tolist() == []


def test_half_a_surrogate_pair_is_for_the_row_reader() -> None:
    assert scanned([line(x="\ud800") + line()], COLUMNS).odd.tolist() == [0]


def test_bytes_that_are_not_utf_8_cost_no_other_line() -> None:
    found = scanned([line() + b'{"step": 1, "group": "\xe9", "reward": 1}\n' + line()], COLUMNS)
    assert 1 in found.odd.tolist()


def test_files_may_tell_the_steps_of_their_lines() -> None:
    columns = replace(COLUMNS, step="file_step", file_step=lambda path: None)
    found = scanned([line(step="?") + line(group="b"), line(), line()], columns, [7, None, 8])
    assert found.part is not None
    assert (found.part.step.tolist(), found.odd.tolist()) == ([7, 7, 8], [2])


def test_a_block_without_a_plain_line_has_no_part() -> None:
    found = scanned([b"\n{\n"], COLUMNS)
    assert (found.part, found.odd.tolist(), found.prompt.tolist()) == (None, [0, 1], [])


def test_lines_of_groups_are_theirs_and_the_odd_ones() -> None:
    data = line() + line(group="b") + b"{\n" + line(step=2) + line()
    found = lines_of_groups(LineQueries(duckdb.connect()), [data], COLUMNS, frozenset({"1:a"}))
    assert found.odd.tolist() == [0, 2, 4]
    assert found.part is None

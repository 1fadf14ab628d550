from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gradscope.rollouts.readers.scan.line_queries import LineQueries

QUERY = "SELECT json_extract(line, '$.a')::BIGINT AS a FROM lines"


def table(*cells: Any, **columns: Any) -> pa.Table:
    lines = pa.array([f'{{"a": {cell}}}' for cell in cells], pa.large_string())
    return pa.table({"line": lines, **columns})


def test_a_query_is_planned_once_and_reads_each_block() -> None:
    queries = LineQueries(duckdb.connect())
    planned = []
    for block in ((1, 2), (3,), ()):
        assert queries.rows(QUERY, table(*block)).to_pydict() == {"a": list(block)}
        planned.append(queries.connection.sql("SELECT name FROM duckdb_prepared_statements()").fetchall())
    assert planned == [[("over_lines_0",)]] * 3


def test_lines_may_gain_a_column() -> None:
    queries = LineQueries(duckdb.connect())
    assert queries.rows(QUERY, table(1)).to_pydict() == {"a": [1]}
    assert queries.rows("SELECT file_step FROM lines", table(1, file_step=[7])).to_pydict() == {"file_step": [7]}
    assert queries.rows(QUERY, table(2, file_step=[7])).to_pydict() == {"a": [2]}


def test_an_error_ends_one_block_alone() -> None:
    queries = LineQueries(duckdb.connect())
    with pytest.raises(duckdb.Error):
        queries.rows(QUERY, table(1, "{"))
    assert queries.rows(QUERY, table(2)).to_pydict() == {"a": [2]}
    with pytest.raises(duckdb.BinderException):
        queries.rows("SELECT nothing FROM lines", table(1))
    assert queries.rows(QUERY, table(3)).to_pydict() == {"a": [3]}


def test_connections_of_one_database_do_not_share_lines() -> None:
    database = duckdb.connect()

    def work(number: int) -> list[int]:
        queries = LineQueries(database.cursor())
        return [queries.rows(QUERY, table(number + at)).to_pydict()["a"][0] - at for at in range(50)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(0, 400, 100))) == [[number] * 50 for number in range(0, 400, 100)]

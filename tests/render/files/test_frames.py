"""Data frames: the rows of the CSV files, with kinds that a program can compute with."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace

import pyarrow
import pytest

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.render.files.csv_tables import render_csv, tidy_tables
from gradscope.render.files.frames import arrow_of, pandas_of, tables_of
from tests.render import examples
from tests.render.compare_example import comparison


@pytest.mark.parametrize(
    "report", [examples.degeneracy_report(), examples.rank_report(), comparison()], ids=lambda one: type(one).__name__
)
def test_a_frame_has_the_header_and_rows_of_the_csv(report: object) -> None:
    for (stem, rows), name in zip(tidy_tables(report).items(), tables_of(report), strict=True):
        header, *lines = csv.reader(io.StringIO(render_csv(rows)))
        table = arrow_of(report, name)
        assert stem.endswith(name)
        assert (table.column_names, table.num_rows) == (header, len(lines))


def test_the_first_table_is_the_main_one() -> None:
    report = examples.degeneracy_report()
    assert arrow_of(report).equals(arrow_of(report, "by_step"))


def test_an_estimate_is_numbers_even_where_none_is_defined() -> None:
    table = arrow_of(examples.claims_report())
    assert table.schema.field("null_low").type == pyarrow.float64()
    undefined = arrow_of(replace(examples.claims_report(), claims=examples.claims_report().claims[1:2]))
    assert undefined.schema.field("estimate").type == pyarrow.float64()
    assert undefined.schema.field("estimate_undefined").type == pyarrow.string()
    assert undefined["estimate"].to_pylist() == [None]


def test_what_a_trainer_logged_as_infinite_is_that_number() -> None:
    report = examples.replay_report()
    first, second, third, *_ = report.steps
    logged = [math.inf, math.nan, 0.25]
    steps = [replace(one, logged={"loss": value}) for one, value in zip((first, second, third), logged, strict=True)]
    values = arrow_of(replace(report, steps=tuple(steps)))["logged.loss"].to_pylist()
    assert values[0] == math.inf
    assert math.isnan(values[1])
    assert values[2] == 0.25


def test_a_column_of_numbers_and_words_is_text() -> None:
    made = comparison()
    cells = tuple(
        replace(cell, settings={"beta": value})
        for cell, value in zip(made.cells, (0.1, "none", True, None), strict=True)
    )
    table = arrow_of(replace(made, cells=cells), "cells")
    assert table["settings.beta"].to_pylist() == ["0.1", "none", "True", None]


def test_pandas_has_nan_for_an_absent_number() -> None:
    frame = pandas_of(examples.claims_report())
    assert frame["estimate"].dtype == float
    assert math.isnan(frame["estimate"][1])


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="This ReplayReport has no table 'curve' with rows") as caught:
        arrow_of(examples.replay_report(), "curve")
    assert caught.value.hint == "There are: steps."


def test_a_result_without_rows_has_no_table() -> None:
    empty = replace(examples.check_report(), verdicts=())
    assert tables_of(empty) == ()
    with pytest.raises(UsageError, match="This CheckReport has no table with rows") as caught:
        arrow_of(empty)
    assert caught.value.hint is None


def test_without_pandas_the_error_names_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="needs pandas") as caught:
        pandas_of(examples.replay_report())
    assert caught.value.hint == "Use to_arrow(), or: pip install pandas"

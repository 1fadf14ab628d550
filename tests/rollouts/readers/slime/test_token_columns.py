"""Lengths of sequences told from columns are those of the sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.slime.token_columns import TokenColumns
from tests.conftest import REPOSITORY

PLAIN: dict[str, Any] = {
    "sample_index": 0,
    "response_length": 2,
    "tokens": [5, 9, 2],
    "loss_mask": [0, 1],
    "rollout_log_probs": [-0.1, -0.2],
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "response_length": (None, 0, -1, 3, 4, 2**60),
    "tokens": (None, [], [5, None, 2], [5], [5, 2]),
    "loss_mask": (None, [], [1], [0, 0], [1, 0], [None, 1], [None, None], [1, 1, 1]),
    "rollout_log_probs": (None, [], [-0.1], [None, -0.2], [float("nan"), 0.0]),
}


def told(columns: TokenColumns, *places: int) -> tuple[Any, Any]:
    """The tokens of some rows, from their sequences and from their lengths; why not where they cannot be told."""

    def found(look: Any) -> Any:
        try:
            return look(places)
        except UnusableRowError as error:
            return str(error)

    sequences = found(columns.sequences)
    whole = sequences if isinstance(sequences, str) else sum(len(one.completion_ids) for one in sequences)
    return found(columns.num_tokens), whole


def assert_alike(table: pa.Table) -> None:
    columns = TokenColumns(table)
    for at in range(len(table)):
        number, whole = told(columns, at)
        assert number == whole, table.slice(at, 1).to_pylist()
    number, whole = told(columns, *range(len(table)))
    assert number == whole


def variants() -> list[dict[str, Any]]:
    """Rows of which one cell is another, and rows of which two are."""
    single = [PLAIN | {name: cell} for name, cells in OTHERS.items() for cell in cells]
    return [PLAIN, *single, *(row | {name: cell} for row in single for name, cells in OTHERS.items() for cell in cells)]


@pytest.mark.parametrize("has_null_tokens", [False, True])
def test_odd_cells(has_null_tokens: bool) -> None:
    rows = [row for row in variants() if has_null_tokens or None not in (row["tokens"] or ())]
    assert_alike(pa.Table.from_pylist(rows))
    for row in rows:
        assert_alike(pa.Table.from_pylist([row, PLAIN]))


@pytest.mark.parametrize(
    "cells",
    [
        {"loss_mask": [True, False]},
        {"loss_mask": [0.0, float("nan")]},
        {"loss_mask": ["", "1"]},
        {"tokens": [5.0, 9.0, 2.0]},
        {"tokens": "592"},
        {"response_length": 2.0},
        {"response_length": "2"},
        {"rollout_log_probs": "xx"},
        {"loss_mask": 1},
        {"loss_mask": [[], [0]]},
        {"loss_mask": {"a": 1}},
    ],
)
def test_columns_of_other_types(cells: dict[str, Any]) -> None:
    assert_alike(pa.Table.from_pylist([PLAIN | cells, PLAIN | cells | {"response_length": None}]))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_columns_that_are_not_there(name: str) -> None:
    assert_alike(pa.Table.from_pylist([PLAIN, PLAIN]).drop_columns([name]))


def test_other_kinds_of_columns() -> None:
    plain = pa.Table.from_pylist([PLAIN, PLAIN | {"tokens": [1, 2], "loss_mask": [1, 0]}])
    for kind in (pa.uint32(), pa.uint64(), pa.int8()):
        assert_alike(plain.set_column(1, "response_length", plain["response_length"].cast(kind)))
        assert_alike(plain.set_column(2, "tokens", plain["tokens"].cast(pa.large_list(kind))))
    assert_alike(pa.concat_tables([plain, plain.slice(1, 1), plain.slice(0, 1)]))
    assert_alike(plain.slice(0, 0))


def test_the_file_beside_another() -> None:
    log = REPOSITORY / "fixtures/logs/miles/trajectory"
    columns = TokenColumns.beside(log / "1.jsonl")
    assert columns is not None
    assert columns.places[6] == [2, 3]
    assert told(columns, 2, 3) == (4, 4)
    assert TokenColumns.beside(Path("nowhere/0.jsonl")) is None

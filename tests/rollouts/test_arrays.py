import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts import arrays
from gradscope.rollouts.readers.parsing.cells import before_answer


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64, np.uint8])
def test_numbers_come_back_as_they_were_whatever_the_chunks(dtype: type) -> None:
    array = pa.array(np.array([3, 1, 2], dtype=dtype))
    chunked = pa.chunked_array([array[:1], array[1:]])
    for column in (array, chunked):
        assert arrays.to_numpy(column).dtype == dtype
        assert arrays.to_numpy(column).tolist() == [3, 1, 2]


def test_a_list_has_nan_where_it_has_no_number() -> None:
    np.testing.assert_array_equal(arrays.to_floats(iter([1.5, None, -2.0])), [1.5, np.nan, -2.0])
    assert arrays.to_floats([]).dtype == np.float64


def test_places_are_found_and_choose_rows() -> None:
    assert arrays.run_starts(["a", "a", "b", None, None]).tolist() == [True, False, True, True, False]
    letters = np.zeros(300_000, dtype=np.uint8)
    letters[[0, 5, 131_071, 131_072, 299_999]] = list(b"{[[{[")
    assert arrays.positions_of(letters, ord("[")).tolist() == [5, 131_071, 299_999]
    assert arrays.positions_of(letters, ord("{"), bits=0x20).tolist() == [0, 5, 131_071, 131_072, 299_999]
    for size in (131_072, 131_077, 131_136, 300_000):
        counts = arrays.counts_by_word(letters[:size], ord("{"), bits=0x20)
        positions = arrays.positions_of(letters[:size], ord("{"), bits=0x20)
        assert counts.tolist() == np.bincount(positions // arrays.WORD, minlength=-(-size // arrays.WORD)).tolist()
    names = pa.array(["a", "b", "c"])
    for indices in (np.array([2, 0, 2]), np.arange(3)[::2], np.zeros(0, dtype=np.int64)):
        assert names.take(arrays.to_indices(indices)).to_pylist() == [names[i].as_py() for i in indices.tolist()]


@pytest.mark.parametrize(
    "cells",
    [
        [["a"], ["a"], ["a", "b"], ["a", None], None, None, [], ["b"]],
        [{"of": "a", "at": [1]}, {"of": "a", "at": [1]}, {"of": "a", "at": [2]}, None, {"of": None, "at": None}],
        [[{"role": "user", "content": "q"}]] * 2 + [[{"role": "user", "content": "p"}]] * 2 + [[]],
        [[["a"], []], [["a"], []], [[], ["a"]]],
    ],
)
def test_lists_and_structs_begin_where_their_plain_values_differ(cells: list[Any]) -> None:
    expected = [index == 0 or cell != cells[index - 1] for index, cell in enumerate(cells)]
    assert arrays.nested_starts(pa.array(cells)).tolist() == expected
    assert arrays.nested_starts(pa.array([cells[-1], *cells])[1:]).tolist() == expected
    assert arrays.nested_starts(pa.array(cells)[:0]).tolist() == []


def test_entries_of_structs_within_structs_are_named_by_dots() -> None:
    column = pa.array([{"a": {"b": {"c": 1}}, "a.b": 7, "d": 2}, {"a": {"b": None}, "a.b": 8, "d": 3}, None])
    for path, cells in {"a.b.c": [1, None, None], "a.b": [7, 8, None], "d": [2, 3, None], "d.e": [None] * 3}.items():
        assert arrays.entry_of_structs(column, path).to_pylist() == cells
    assert arrays.entry_of_structs(pa.array(["x"]), "a").to_pylist() == [None]


def test_what_arrow_does_not_encode_is_compared_as_plain_values() -> None:
    maps = pa.array([[("a", 1)], [("a", 1)], [("b", 1)]], pa.map_(pa.string(), pa.int64()))
    assert arrays.nested_starts(maps).tolist() == [True, False, True]


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_conversations_lose_their_last_answers_as_plain_ones_do(list_of: Any) -> None:
    kind = list_of(pa.struct([("role", pa.string()), ("content", pa.string())]))
    roles = [
        ["user", "assistant"],
        [],
        ["assistant", "user"],
        ["assistant"],
        [None, "assistant", "assistant"],
        ["tool"],
    ]
    talks = [[{"role": role, "content": f"{i}"} for i, role in enumerate(talk)] for talk in roles]
    for first in (0, 2):  # a slice, too
        cut = arrays.without_answers(pa.array(talks, kind)[first:])
        assert cut is not None
        assert cut.to_pylist() == list(map(before_answer, talks[first:]))
    without_one = pa.array([talks[2][1:], [{"role": None, "content": "a"}]], kind)
    assert arrays.without_answers(without_one).to_pylist() == without_one.to_pylist()
    for other in (["a"], [{"role": "assistant"}], [["assistant"]], [[{"role": 1}]], [None, talks[0]], [[None]]):
        assert arrays.without_answers(pa.array(other)) is None


def test_text_of_any_letters_becomes_strings() -> None:
    texts = ["", "plain", "héllo ☃ 𝄞", "a\0b"]
    assert arrays.to_texts(arrays.to_strings(texts)) == arrays.to_strings(texts).to_pylist() == texts
    assert arrays.to_strings([]).to_pylist() == []
    assert arrays.byte_counts(arrays.to_strings(texts)[1:]).tolist() == [len(text.encode()) for text in texts[1:]]
    # No file of UTF-8 holds half a surrogate pair, but JSON may name one.
    halves = ["\ud800", "\ud801", "\ud800", "é"]
    assert arrays.to_strings(halves).dictionary_encode().indices.to_pylist() == [0, 1, 0, 2]
    assert arrays.to_texts(arrays.to_strings(halves)) == halves


@pytest.mark.parametrize("values", [[1.0, None, 3.0, None], [1.0, 2.0, 3.0, 4.0], [None] * 4])
def test_null_becomes_a_value(values: list[float | None]) -> None:
    column = pa.array([0.0, *values], pa.float64())[1:]
    wanted = [-1.0 if value is None else value for value in values]
    assert arrays.to_filled(column, -1.0).tolist() == wanted
    assert arrays.to_filled(pa.chunked_array([column, column]), -1.0).tolist() == wanted * 2


@pytest.mark.slow
def test_tables_are_read_without_pandas(tmp_path: Path) -> None:
    """It is no dependency, and where it is there pyarrow's ``fill_null`` imports it, which takes a while."""
    pq.write_table(pa.table({"step": [1, 1], "group_id": ["a", "a"], "reward": [1.0, None]}), tmp_path / "a.parquet")
    code = "import sys; from gradscope.rollouts.readers.detect import read_run; "
    code += f"read_run({str(tmp_path)!r}, rewards_only=True); print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_rows_of_a_dictionary_count_what_they_refer_to_and_share_it(kind: pa.DataType) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.int32()), pa.array(["a", "b" * 100], kind))
    assert arrays.expanded_bytes(texts) == 201
    assert arrays.expanded_bytes(pa.ListArray.from_arrays(pa.array([0, 1, 4]), texts)) == 201
    assert arrays.expanded_bytes(pa.StructArray.from_arrays([texts, texts[:4]], names=["x", "y"])) == 402
    first, _, third, last = arrays.to_cells(texts)
    assert first is last
    assert third is None
    assert arrays.to_cells(texts) == texts.to_pylist()


def test_other_columns_count_their_own_bytes() -> None:
    for column in (
        pa.array([1, 2]),
        pa.array(["a", None]),
        pa.array([[1], [2, 3]]),
        pa.array([1, 1]).dictionary_encode(),
    ):
        assert arrays.expanded_bytes(column) == column.nbytes
        assert arrays.to_cells(column) == column.to_pylist()

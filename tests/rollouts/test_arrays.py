import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.arrays import (
    bytes_of,
    cut_strings,
    to_filled,
    to_floats,
    to_indices,
    to_numpy,
    to_strings,
    to_texts,
)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64, np.uint8])
def test_numbers_come_back_as_they_were_whatever_the_chunks(dtype: type) -> None:
    values = np.array([3, 1, 2], dtype=dtype)
    whole = pa.array(values)
    chunked = pa.chunked_array([whole[:1], whole[1:]])
    for column in (whole, chunked):
        assert to_numpy(column).dtype == dtype
        assert to_numpy(column).tolist() == [3, 1, 2]


def test_a_list_has_nan_where_it_has_no_number() -> None:
    np.testing.assert_array_equal(to_floats(iter([1.5, None, -2.0])), [1.5, np.nan, -2.0])
    assert to_floats([]).dtype == np.float64


def test_places_choose_rows() -> None:
    names = pa.array(["a", "b", "c"])
    for places in (np.array([2, 0, 2]), np.arange(3)[::2], np.zeros(0, dtype=np.int64)):
        assert names.take(to_indices(places)).to_pylist() == [names[at].as_py() for at in places.tolist()]


def test_text_of_any_letters_becomes_strings() -> None:
    texts = ["", "plain", "héllo ☃ 𝄞", "a\0b"]
    assert to_texts(to_strings(texts)) == to_strings(texts).to_pylist() == texts
    assert to_strings([]).to_pylist() == []
    # No file of UTF-8 holds half a surrogate pair, but JSON may name one.
    halves = ["\ud800", "\ud801", "\ud800", "é"]
    assert to_strings(halves).dictionary_encode().indices.to_pylist() == [0, 1, 0, 2]
    assert to_texts(to_strings(halves)) == halves


@pytest.mark.parametrize("values", [[1.0, None, 3.0, None], [1.0, 2.0, 3.0, 4.0], [None] * 4])
def test_null_becomes_a_value(values: list[float | None]) -> None:
    column = pa.array([0.0, *values], pa.float64())[1:]
    wanted = [-1.0 if value is None else value for value in values]
    assert to_filled(column, -1.0).tolist() == wanted
    assert to_filled(pa.chunked_array([column, column]), -1.0).tolist() == wanted * 2


@pytest.mark.slow
def test_tables_are_read_without_pandas(tmp_path: Path) -> None:
    """It is no dependency, and where it is there pyarrow's ``fill_null`` imports it, which takes a while."""
    pq.write_table(pa.table({"step": [1, 1], "group_id": ["a", "a"], "reward": [1.0, None]}), tmp_path / "a.parquet")
    code = "import sys; from gradscope.rollouts.readers.detect import read_run; "
    code += f"read_run({str(tmp_path)!r}, rewards_only=True); print('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_strings_are_cut_at_bytes_of_their_own() -> None:
    words = ["a_1_0", "", "é_x", "plain"]
    strings = to_strings(words)
    data, starts = bytes_of(strings)
    assert (data.tobytes().decode(), starts.tolist()) == ("a_1_0é_xplain", [0, 5, 5, 9, 14])
    heads, tails = cut_strings(strings, np.array([1, 5, 7, 14]))
    assert (heads.to_pylist(), tails.to_pylist()) == (["a", "", "é", "plain"], ["_1_0", "", "_x", ""])
    assert bytes_of(to_strings([]))[1].tolist() == [0]

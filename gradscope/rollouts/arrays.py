"""From lists and Arrow to NumPy and back, between the last two without a copy.

pyarrow's own ways look for pandas first, and importing it takes as long as hundreds of thousands of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def to_numpy(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """A column of numbers, none of them null, as an array, [R]."""
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def to_filled(column: pa.ChunkedArray | pa.Array, value: float) -> NDArray[Any]:
    """A column of numbers as an array, with a value in place of null, [R]; ``fill_null`` would import pandas."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not whole.null_count:
        return to_numpy(whole)
    bare = pa.Array.from_buffers(whole.type, len(whole), [None, whole.buffers()[1]], offset=whole.offset)
    return np.where(to_numpy(whole.is_valid().cast(pa.int8())), to_numpy(bare), value)


def to_floats(values: Iterable[float | None]) -> NDArray[np.float64]:
    """Numbers as an array, NaN where there is none, [R]."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def to_indices(rows: NDArray[np.int64]) -> pa.Array:
    """Places of rows, for ``take``."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def to_strings(values: list[str]) -> pa.Array:
    """Text as an array, also that with half a surrogate pair, which no UTF-8 holds."""
    text = "".join(values)
    data = text.encode("utf-8", "surrogatepass")
    lengths = map(len, values if text.isascii() else [value.encode("utf-8", "surrogatepass") for value in values])
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=ends[1:])
    whole = pa.LargeStringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(data))
    return whole.cast(pa.string())


def bytes_of(strings: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of strings that :func:`to_strings` made, and where each starts and the last one ends, [R + 1]."""
    _, ends, data = strings.buffers()
    starts = np.frombuffer(ends, np.int32, len(strings) + 1).astype(np.int64)
    return np.frombuffer(data or b"", np.uint8, starts[-1]), starts


def cut_strings(strings: pa.Array, at: NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
    """Strings of ``to_strings`` [R] cut at bytes of the whole [R]: what stands before, and from there on, [R] each."""
    data, starts = bytes_of(strings)
    sizes = np.stack([at - starts[:-1], starts[1:] - at])
    is_head = np.repeat(np.tile([True, False], len(at)), sizes.T.ravel())
    heads, tails = (
        pa.Array.from_buffers(
            pa.string(), len(at), [None, pa.py_buffer(np.cumsum([0, *size], dtype=np.int32)), pa.py_buffer(part)]
        )
        for size, part in zip(sizes, (data[is_head], data[~is_head]), strict=True)
    )
    return heads, tails


def to_texts(strings: pa.Array) -> list[str]:
    """An array that :func:`to_strings` may have made as text."""
    try:
        return list(strings.to_pylist())
    except UnicodeDecodeError:
        return [value.decode("utf-8", "surrogatepass") for value in strings.cast(pa.binary()).to_pylist()]

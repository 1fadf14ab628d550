"""From lists and Arrow to NumPy and back, between the last two without a copy.

pyarrow's own ways look for pandas first, and importing it takes as long as hundreds of thousands of rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import ne
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def to_numpy(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """A column of numbers, none of them null, as an array, [R]."""
    return np.from_dlpack(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def to_filled(column: pa.ChunkedArray | pa.Array, value: float) -> NDArray[Any]:
    """A column of numbers as an array, with a value in place of null, [R]; ``fill_null`` would import pandas."""
    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not joined.null_count:
        return to_numpy(joined)
    without_nulls = pa.Array.from_buffers(joined.type, len(joined), [None, joined.buffers()[1]], offset=joined.offset)
    return np.where(to_numpy(joined.is_valid().cast(pa.int8())), to_numpy(without_nulls), value)


def to_floats(values: Iterable[float | None]) -> Floats:
    """Numbers as an array, NaN where there is none, [R]."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def to_indices(rows: Counts) -> pa.Array:
    """Indices of rows, for ``take``."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def to_strings(values: list[str]) -> pa.Array:
    """Text as an array, also that with half a surrogate pair, which no UTF-8 holds."""
    text = "".join(values)
    data = text.encode("utf-8", "surrogatepass")
    lengths = map(len, values if text.isascii() else [value.encode("utf-8", "surrogatepass") for value in values])
    is_large = len(data) > np.iinfo(np.int32).max
    ends = np.zeros(len(values) + 1, dtype=np.int64 if is_large else np.int32)
    np.cumsum(np.fromiter(lengths, ends.dtype, len(values)), out=ends[1:])
    kind = pa.LargeStringArray if is_large else pa.StringArray
    return kind.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(data))


def to_cells(column: pa.Array) -> list[Any]:
    """Plain values; equal ones of a dictionary are one object, as a few bytes may stand for a long text in each row."""
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    values = [*column.dictionary.to_pylist(), None]
    return [values[code] for code in dictionary_codes(column).tolist()]


_SPECIAL = re.compile("extension|view|date|time|duration|interval")  # types that are not plain, or names within others


def as_plain_types(column: pa.Array) -> pa.Array:
    """The same without extension, view and temporal types at any level, which many functions do not take."""
    while _SPECIAL.search(str(column.type)) and (kind := _plain_type(column.type)) != column.type:
        column = column.cast(kind)
    return column


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_temporal(kind):  # without its zone first, which this machine may not know
        return pa.timestamp(kind.unit) if types.is_timestamp(kind) and kind.tz else pa.string()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        field = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.list_(field) if types.is_list(kind) else pa.large_list(field)
    return kind


def dictionary_codes(column: pa.Array) -> Counts:
    """Which value of its dictionary each row has; -1 for null, [R]."""
    return to_filled(column.indices.cast(pa.int64()), -1)


def byte_offsets(strings: pa.Array) -> NDArray[Any]:
    """Where each text or binary value begins in their buffer, and the last ends, [R + 1]."""
    is_large = pa.types.is_large_string(strings.type) or pa.types.is_large_binary(strings.type)
    width = np.dtype(np.int64 if is_large else np.int32)
    return np.frombuffer(strings.buffers()[1], width, len(strings) + 1, offset=width.itemsize * strings.offset)


def byte_counts(strings: pa.Array) -> NDArray[Any]:
    """How many bytes each text or binary value has, [R]."""
    return np.diff(byte_offsets(strings))


def expanded_bytes(column: pa.Array) -> int:
    """The bytes of a column once each row has a copy of its own of what it refers to in a dictionary."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        if kind.value_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            sizes = np.append(byte_counts(column.dictionary), 0)
            return int(sizes[dictionary_codes(column)].sum())
    elif kind.num_fields and "dictionary<" in str(kind):
        parts = column.flatten()
        return sum(map(expanded_bytes, parts if isinstance(parts, list) else [parts]))
    return int(column.nbytes)


def index_names(indices: Counts) -> list[str]:
    """Indices as text, [R]; "" for those below zero, which stand for none."""
    values, codes = np.unique(indices, return_inverse=True)
    names = ["" if value < 0 else str(value) for value in values.tolist()]
    return list(map(names.__getitem__, codes.tolist()))


def run_starts(cells: Sequence[Any]) -> Flags:
    """Which cells differ from the one before, [R]."""
    return np.fromiter(map(ne, cells, chain([object()], cells)), np.bool_, len(cells))


def nested_starts(column: pa.Array) -> Flags:
    """:func:`run_starts` of lists and structs that stay in Arrow, [R]."""
    rows = np.arange(len(column))
    try:
        differ = ~_are_equal(column, rows[1:], rows[:-1])
    except pa.ArrowNotImplementedError:  # of a map, say
        return run_starts(to_cells(column))
    return np.append(np.ones(min(len(column), 1), dtype=np.bool_), differ)


def entry_of_structs(column: pa.Array, path: str) -> pa.Array:
    """An entry of structs, or of structs within them where dots join its names; null where they have none, [R]."""
    if not pa.types.is_struct(column.type):
        return pa.nulls(len(column))
    if (index := column.type.get_field_index(path)) >= 0:
        return column.flatten()[index]
    head, dot, tail = path.partition(".")
    index = column.type.get_field_index(head)
    return entry_of_structs(column.flatten()[index], tail) if dot and index >= 0 else pa.nulls(len(column))


def without_answers(column: pa.Array) -> pa.Array | None:
    """Conversations without the assistant's last messages; None where cells may be anything else."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    role = kind.value_type.get_field_index("role") if is_list and pa.types.is_struct(kind.value_type) else -1
    if role < 0 or column.null_count or column.values.null_count or not pa.types.is_string(kind.value_type[role].type):
        return None
    entries = column.values.flatten()[role].dictionary_encode()
    codes = dictionary_codes(entries)
    is_other = (codes < 0) | (codes != entries.dictionary.index("assistant").as_py())
    prompt_ends = np.append(0, np.maximum.accumulate(np.where(is_other, np.arange(1, len(entries) + 1), 0)))
    offsets = to_numpy(column.offsets).astype(np.int64)
    sizes = np.maximum(prompt_ends[offsets[1:]] - offsets[:-1], 0)
    ends = np.cumsum(sizes)
    chosen = np.repeat(offsets[:-1] - (ends - sizes), sizes) + np.arange(len(sizes) and ends[-1])
    values = column.values.take(to_indices(chosen))
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, ends)), values)


def _are_equal(column: pa.Array, first: Counts, second: Counts) -> Flags:
    """Whether the cells of each pair of rows are equal, null and null too, [P]."""
    if pa.types.is_struct(column.type):
        are_equal = np.ones(len(first), dtype=np.bool_)
        for field in column.flatten():
            are_equal &= _are_equal(field, first, second)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        offsets = to_numpy(column.offsets).astype(np.int64)
        sizes = np.diff(offsets)
        are_equal = sizes[first] == sizes[second]
        num = np.where(are_equal, sizes[first], 0)
        pair = np.repeat(np.arange(len(first)), num)
        offset = np.arange(len(pair)) - np.repeat(np.cumsum(num) - num, num)
        differ = ~_are_equal(column.values, offsets[first][pair] + offset, offsets[second][pair] + offset)
        are_equal[pair[differ]] = False
    else:
        codes = dictionary_codes(column if pa.types.is_dictionary(column.type) else column.dictionary_encode())
        return np.asarray(codes[first] == codes[second])
    is_valid = to_numpy(column.is_valid().cast(pa.int8()))
    return np.asarray((is_valid[first] == is_valid[second]) & (are_equal | (is_valid[first] == 0)))


WORD = 64  # letters whose comparisons are the bits of one number
_BLOCK = 1 << 17  # letters that are compared at once: of a whole block, the results leave a processor's cache


def positions_of(letters: NDArray[np.uint8], letter: int, bits: int = 0) -> Counts:
    """Where a letter, or any that is it but for some bits which it has, stands among at least one."""
    return np.concatenate([np.flatnonzero(is_letter) + start for start, is_letter in _matches(letters, letter, bits)])


def count_of(letters: NDArray[np.uint8], letter: int) -> int:
    """How many :func:`positions_of` has, in a third of its time."""
    return sum(int(np.count_nonzero(is_letter)) for _, is_letter in _matches(letters, letter, 0))


def counts_by_word(letters: NDArray[np.uint8], letter: int, bits: int = 0) -> NDArray[np.uint8]:
    """How many of :func:`positions_of` lie in each :data:`WORD` letters and in the rest, in a third of its time."""
    packed = [np.packbits(is_letter) for _, is_letter in _matches(letters, letter, bits)]
    padding = np.zeros(-len(letters) % WORD // 8, dtype=np.uint8)
    return np.bitwise_count(np.concatenate([*packed, padding]).view(np.uint64))


def _matches(letters: NDArray[np.uint8], letter: int, bits: int) -> Iterator[tuple[int, Flags]]:
    for start in range(0, len(letters), _BLOCK):
        piece = letters[start : start + _BLOCK]
        yield start, (piece | bits if bits else piece) == letter


def to_texts(strings: pa.Array) -> list[str]:
    """An array that :func:`to_strings` may have made as text."""
    try:
        return list(strings.to_pylist())
    except UnicodeDecodeError:
        return [value.decode("utf-8", "surrogatepass") for value in strings.cast(pa.binary()).to_pylist()]

"""Cells that were left as JSON text: lists counted and digests made without parsing them. R rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from gradscope.rollouts.arrays import count_of, positions_of
from gradscope.rollouts.readers.parsing.cells import digest

Counts = NDArray[np.int64]

_ID_CELLS = b" 0123456789,"
_CELLS = _ID_CELLS + b".-+eEnultrfas"
"""The letters within a JSON list of whole numbers, and within one of numbers, booleans and null."""
_OPEN, _CLOSE, _COMMA = b"[],"
_NO_CELLS = b'"{NI'
_NO_ID_CELLS = _NO_CELLS + b"-.eEu"
"""Letters, some of which any other JSON has: text, objects, NaN and infinity; for ids also any other cell."""


def json_of(cell: Any) -> bytes:
    """The JSON text of a cell that was not parsed, or of one that was; a missing one is null."""
    return bytes(cell) if isinstance(cell, Raw) else b"null" if cell is UNSET else json.dumps(cell).encode()


def jsons_of(cells: Sequence[Any]) -> list[bytes]:
    """:func:`json_of` of each, [R]."""
    return list(map(bytes if {Raw}.issuperset(map(type, cells)) else json_of, cells))


def flat_length(text: bytes, cells: bytes = _CELLS) -> int:
    """How many cells a JSON text has that is a flat list of such letters; -1 where it is anything else."""
    if text.translate(None, cells) != b"[]":
        return -1
    return text.count(b",") + 1 if text.strip(b"[ ]") else 0


def num_ids(text: bytes) -> int:
    """How many ids a JSON text has that is a list of whole numbers from 0 on; -1 where it is anything else."""
    return flat_length(text, _ID_CELLS)


def flat_lengths(texts: Sequence[bytes], depth: int = 1) -> Counts:
    """:func:`flat_length` of each, [R], or, at ``depth`` 2, of the one list in each."""
    return _lengths(texts, _NO_CELLS, flat_length, depth)


def nums_ids(texts: Sequence[bytes], depth: int = 1) -> Counts:
    """:func:`num_ids` of each, [R], likewise."""
    return _lengths(texts, _NO_ID_CELLS, num_ids, depth)


def _lengths(texts: Sequence[bytes], strange: bytes, length_of: Callable[[bytes], int], depth: int) -> Counts:
    """Lengths of JSON lists: where one look at all texts together says that they are such, only commas are counted."""
    joined, size = b"".join(texts), np.fromiter(map(len, texts), np.int64, len(texts))
    letters, ends = np.frombuffer(joined, np.uint8), np.cumsum(size)
    are_lists = bool((size >= 2 * depth).all()) and all(
        (letters[ends - size + at] == _OPEN).all() and (letters[ends - 1 - at] == _CLOSE).all() for at in range(depth)
    )
    num_lists = count_of(letters, _OPEN) if are_lists else 0
    if num_lists != depth * len(texts) or any(letter in joined for letter in strange):
        counts = np.zeros(len(texts), dtype=np.int64)
    else:
        counts = np.diff(np.searchsorted(positions_of(letters, _COMMA), ends), prepend=0)
    lengths = counts + 1
    for at in np.flatnonzero(counts == 0).tolist():
        text = texts[at]
        is_nested = text[:depth] == b"[" * depth and text[-depth:] == b"]" * depth  # and not [[1], 2]
        lengths[at] = length_of(text[depth - 1 : len(text) + 1 - depth] if is_nested else b"")
    return lengths


def ids_digest(text: bytes) -> str:
    """The ``digest`` of a list of whole numbers."""
    spaced = text.replace(b" ", b"").replace(b",", b", ")
    return hashlib.sha256(b"[" + spaced + b"]").hexdigest()[:16]


def digests_of(rows: Sequence[tuple[bytes, ...]]) -> list[str]:
    """The ``digest`` of what each row's JSON texts say, [R]."""
    texts = [text for row in rows for text in row]
    are_all = {text[:1] for text in texts} == {b'"'} and _is_canonical(b"".join(texts))
    return [
        hashlib.sha256(b"[" + b", ".join(row) + b"]").hexdigest()[:16]  # what json.dumps would write is there already
        if are_all or all(map(_is_canonical, row))
        else digest(*map(json.loads, row))
        for row in rows
    ]


def _is_canonical(text: bytes) -> bool:
    is_plain = text[:1] == b'"' and text.isascii() and b"\x7f" not in text
    return is_plain and (b"\\" not in text or not (b"\\u" in text or b"\\/" in text))

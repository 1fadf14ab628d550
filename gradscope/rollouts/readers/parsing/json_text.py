"""Cells as JSON text: how long a list is and what it is called, without parsing it, [R] for R rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import UNSET, MsgspecError, Raw
from msgspec.json import Decoder, encode

from gradscope.rollouts.arrays import Counts, count_of
from gradscope.rollouts.readers.parsing.cells import digest, token_ids

_STRING = Decoder(str)
ID_CELLS = b" 0123456789,"
_CELLS = ID_CELLS + b".-+eEnultrfas"
"""The letters within a JSON list of whole numbers, and within one of numbers, booleans and null."""
_OPEN, _CLOSE, _COMMA, _NEWLINE = b"[],\n"
NULL = -2
"""The length of null among those of lists."""
_NO_CELLS = b'"{NI'
_NO_ID_CELLS = _NO_CELLS + b"-.eEu"
"""Letters, some of which any other JSON has: text, objects, NaN and infinity; for ids also any other cell."""


def json_of(cell: Any) -> bytes:
    """The JSON text of a cell that was not parsed, or of one that was; a missing one is null."""
    if isinstance(cell, Raw):
        return bytes(cell)
    with suppress(MsgspecError, OverflowError, UnicodeEncodeError):
        text = encode(None if cell is UNSET else cell)
        if cell is UNSET or b"null" not in text:  # which NaN becomes too
            return text
    return json.dumps(cell).encode()


def jsons_of(cells: Sequence[Any]) -> list[bytes]:
    """:func:`json_of` of each, [R]."""
    return list(map(bytes if {Raw}.issuperset(map(type, cells)) else json_of, cells))


def flat_length(text: bytes, cells: bytes = _CELLS) -> int:
    """How many cells a JSON text has that is a flat list of such letters; -1 where it is anything else."""
    if text.translate(None, cells) != b"[]":
        return -1
    return text.count(b",") + 1 if text.strip(b"[ ]") else 0


def flat_lengths(cells: Sequence[Any], depth: int = 1) -> Counts:
    """:func:`flat_length` of the JSON of each, or ``NULL``, [R]; at ``depth`` 2 of the one list in each."""
    return _lengths(cells, _NO_CELLS, _CELLS, depth)


def nums_ids(cells: Sequence[Any], depth: int = 1) -> Counts:
    """The same of lists of ids, which are whole numbers from 0 on."""
    return _lengths(cells, _NO_ID_CELLS, ID_CELLS, depth)


def _lengths(cells: Sequence[Any], foreign: bytes, cell_letters: bytes, depth: int) -> Counts:
    """Lengths of JSON lists: where one look at all texts together says that they are such, only commas are counted."""
    texts = cells if {Raw, bytes}.issuperset(map(type, cells)) else jsons_of(cells)
    letters = np.frombuffer(joined := b"\n".join(texts), np.uint8)
    breaks = np.flatnonzero(letters == _NEWLINE)
    if len(breaks) >= max(len(texts), 1):  # some are laid out over several lines
        return _lengths([Raw(bytes(text).replace(b"\n", b" ")) for text in texts], foreign, cell_letters, depth)
    starts, ends = np.append(0, breaks + 1)[: len(texts)], np.append(breaks, len(letters))[: len(texts)]
    are_lists = bool((ends - starts >= 2 * depth).all()) and all(
        (letters[starts + index] == _OPEN).all() and (letters[ends - 1 - index] == _CLOSE).all()
        for index in range(depth)
    )
    num_lists = count_of(letters, _OPEN) if are_lists else 0
    counts = np.zeros(len(texts), dtype=np.int64)
    if num_lists == depth * len(texts) and not any(letter in joined for letter in foreign):
        counts = np.add.reduceat(letters == _COMMA, starts, dtype=np.int32)
    lengths = counts + 1
    for index in np.flatnonzero(counts == 0).tolist():
        text = bytes(texts[index])
        is_nested = text[:depth] == b"[" * depth and text[-depth:] == b"]" * depth  # and not [[1], 2]
        length = flat_length(text[depth - 1 : len(text) + 1 - depth] if is_nested else b"", cell_letters)
        lengths[index] = NULL if text == b"null" else length
    return lengths


def ids_digest(text: bytes) -> str:
    """The ``digest`` of a list of whole numbers."""
    return _digest_of_spaced(b"".join(text.split()).replace(b",", b", "))


def _digest_of_spaced(text: bytes) -> str:
    return hashlib.sha256(b"[%b]" % text).hexdigest()[:16]


def digests_of_ids(texts: Sequence[bytes]) -> list[str]:
    """The ``digest`` of each list of ids; "" of any other JSON, [R]."""
    joined = b"".join(texts)
    are_spaced = joined.count(b",") == joined.count(b", ") == joined.count(b" ")  # as json.dumps writes them
    are_spaced &= not any(space in joined for space in b"\t\n\r")
    digests = list(map(_digest_of_spaced if are_spaced else ids_digest, texts))
    for index in np.flatnonzero(nums_ids(texts) < 0).tolist():  # perhaps with ids below zero
        ids = token_ids(json.loads(texts[index]))
        digests[index] = "" if ids is None else digest(ids)
    return digests


def digests_of(rows: Sequence[tuple[bytes, ...]]) -> list[str]:
    """The ``digest`` of what each row's JSON texts say, [R]."""
    texts = [text for row in rows for text in row]
    are_all = {text[:1] for text in texts} == {b'"'} and _is_canonical(b"".join(texts))
    return [
        hashlib.sha256(b"[" + b", ".join(row) + b"]").hexdigest()[:16]  # what json.dumps would write is there already
        if are_all or all(map(_is_canonical, row))
        else digest(*map(_value_of, row))
        for row in rows
    ]


def _value_of(text: bytes) -> Any:
    if text[:1] == b'"':
        with suppress(MsgspecError):  # half of a surrogate pair, which json takes, in three times the time
            return _STRING.decode(text)
    return json.loads(text)


def _is_canonical(text: bytes) -> bool:
    is_plain = text[:1] == b'"' and text.isascii() and b"\x7f" not in text
    return is_plain and (b"\\" not in text or not (b"\\u" in text or b"\\/" in text))

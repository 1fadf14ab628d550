"""Scalars in TensorBoard's event files: records of a length, a checksum and a message of protocol buffers.

Of a message only what a scalar takes is read: its step (field 2) and its summary (5), whose values (1) have a tag (1)
and a number (2, float32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradscope.outside.limits import read_whole

_NUMBER, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
"""Wire types: a number in as many bytes as it takes, eight bytes, a length and so many bytes, four bytes."""
Field = tuple[int, int | bytes]


def event_files(folder: Path, *, below: Sequence[str] = ("**",)) -> list[Path]:
    """TensorBoard's files of a folder.

    Args:
        folder: Where they may lie.
        below: Patterns of the folders in it to look into; all, unless the folder may hold other runs.

    Returns:
        The files, in order; no pipes.
    """
    found = (path for pattern in below for path in folder.glob(str(Path(pattern, "events.out.tfevents.*"))))
    return sorted(path for path in found if path.is_file())


def scalars_in(file: Path) -> dict[int, dict[str, float]]:
    """The scalars of a file; what follows a record that is cut off is left out.

    Returns:
        Step -> tag -> value, of a repeated one the later.
    """
    found: dict[int, dict[str, float]] = {}
    for message in _records(read_whole(file)):
        try:
            event = list(_fields(message))
            step = next((value for number, value in event if number == 2 and isinstance(value, int)), 0)
            found.setdefault(step, {}).update(_values(event))
        except (IndexError, ValueError, struct.error):
            continue
    return {step: values for step, values in found.items() if values}


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        yield data[at + 12 : end]
        at = end + 4


def _values(event: list[Field]) -> Iterator[tuple[str, float]]:
    summaries = (value for number, value in event if number == 5 and isinstance(value, bytes))
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                fields = dict(_fields(value))
                tag, simple = fields.get(1), fields.get(2)
                if isinstance(tag, bytes) and isinstance(simple, bytes):
                    yield tag.decode("utf-8"), struct.unpack("<f", simple)[0]


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of a message; numbers of fixed length as their bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _NUMBER:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        length = {_LONG: 8, _SHORT: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(message, at)
        if length is None:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at

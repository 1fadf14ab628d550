"""Scalars in TensorBoard's event files: records of a length, a message of protocol buffers, and a checksum of each.

Of a message only what a scalar takes is read: its step (field 2) and its summary (5), whose values (1) have a tag (1)
and a number (2, float32).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from gradscope.outside.limits import read_whole

_NUMBER, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
"""Wire types: a number in as many bytes as it takes, eight bytes, a length and so many bytes, four bytes."""
_NONE = 0  # the checksum of a writer that makes none
Field = tuple[int, int | bytes]


def event_files(folder: Path, *, below: Sequence[str] = ("**",)) -> list[Path]:
    """TensorBoard's files in some folders below one, in order: all, unless these may hold other runs; no pipes."""
    found = (path for pattern in below for path in folder.glob(str(Path(pattern, "events.out.tfevents.*"))))
    return sorted(path for path in found if path.is_file())


def scalars_in(file: Path, damaged: Callable[[str], None]) -> dict[int, dict[str, float]]:
    """The scalars of a file; a last record that is cut off is left out, for it may be being written.

    Args:
        file: In TensorBoard's format.
        damaged: Told in a few words of each part that cannot be used.

    Returns:
        Step -> tag -> value, of a repeated one the later.
    """
    found: dict[int, dict[str, float]] = {}
    for at, message, checksum in _records(read_whole(file), damaged):
        try:
            event = list(_fields(message))
            step = next((value for number, value in event if number == 2 and isinstance(value, int)), 0)
            values = dict(_values(event))
        except (IndexError, ValueError, struct.error):
            damaged(f"the record at byte {at:,} is none")
            continue
        if values and checksum not in (_NONE, masked_checksum(message)):  # of images, which are not read, it takes long
            damaged(f"the record at byte {at:,} is not what was written: its checksum is another")
            continue
        found.setdefault(step, {}).update(values)
    return {step: values for step, values in found.items() if values}


def masked_checksum(data: bytes) -> int:
    """The CRC-32C of some bytes, rotated and shifted as in TensorFlow's records.

    Returns:
        32 bits.

    Example:
        >>> hex(masked_checksum(b"123456789"))
        '0xc78ab0e5'
    """
    table, checksum = _table(), 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


def _records(data: bytes, damaged: Callable[[str], None]) -> Iterator[tuple[int, bytes, int]]:
    """Each record's place, message and checksum; behind a length that is none nothing can be found."""
    at = 0
    while at + 12 <= len(data):
        length, of_length = struct.unpack_from("<QI", data, at)
        if of_length not in (_NONE, masked_checksum(data[at : at + 8])):
            damaged(f"from byte {at:,} on it cannot be read")
            return
        end = at + 12 + length
        if end + 4 > len(data):
            return
        yield at, data[at + 12 : end], struct.unpack_from("<I", data, end)[0]
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

"""Scalars in TensorBoard's event files and rows in W&B's ``run-ID.wandb``, both messages of protocol buffers.

TensorBoard's records are a length, a message, and a checksum of each. Of a message only the fields of a scalar are
read: its step (field 2) and its summary (5), whose values (1) have a tag (1) and a number (2, float32), or as
TensorFlow 2 and clu write it a tensor (8) of the type (1) float32, whose bytes (4) or floats (5) are that number.

W&B's file is a log as LevelDB writes it. Of a record only its history (2) is read, whose items (1) have a key (1, or 2
for each part of it) and a value in JSON (16).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradscope.outside.limits import read_limited
from gradscope.rollouts.arrays import Counts, Flags, Floats
from gradscope.rollouts.run import Numbers, StepMetrics

Bytes = NDArray[np.uint8]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types: a varint, eight bytes, a length and so many bytes, four bytes."""
_FLOAT32 = 1  # a type of TensorFlow's
_STEP_AT = 10  # the first byte of a step behind a time: its key is behind a key and eight bytes
_NO_CHECKSUM = 0  # the checksum of a writer that makes none
Field = tuple[int, int | bytes, int]  # number, value, offset of the value

_MIN_MESSAGES, _MAX_MESSAGE, _MAX_KINDS = 16, 512, 32
"""Fewer messages of a size, longer ones and those of further kinds are read one by one."""
_CELLS = 1 << 21  # bytes of messages that are compared together
_MAX_STEPS = (1 << 63) - 1
WANDB_START = b":W&B"
_WANDB_HEADER, _BLOCK = 7, 1 << 15  # bytes before the first record, and in a block, at whose end records are cut
_FULL, _FIRST, _LAST = 1, 2, 4  # a record, and the first and last part of one
_NO_STEPS = np.zeros(0, dtype=np.int64)


def event_files(folder: Path, *, below: Sequence[str] = ("**",)) -> list[Path]:
    """TensorBoard's files in the folders below one that match the patterns, sorted; no pipes."""
    paths = (path for pattern in below for path in folder.glob(str(Path(pattern, "events.out.tfevents.*"))))
    return sorted(path for path in paths if path.is_file())


def scalars_in(file: Path, damaged: Callable[[str], None]) -> StepMetrics:
    """The scalars of a file, of a repeated one the later; a last record that is cut off may be being written.

    Args:
        damaged: Called with the reason for each part that cannot be used.
    """
    data = np.frombuffer(read_limited(file), dtype=np.uint8)
    starts, sizes, truncation = _records(data)
    read = _Scalars()
    order = np.argsort(sizes, kind="stable")
    for same_size in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
        read.add(data, starts, same_size, int(sizes[same_size[0]]) if len(same_size) else 0)
    for _, message in sorted(read.damage):
        damaged(message)
    if truncation:
        damaged(truncation)
    return read.result()


def history_in(file: Path, damaged: Callable[[str], None]) -> Iterator[bytes]:
    """The rows of W&B's file of a run as lines of JSON, ``_step`` among their keys.

    Args:
        damaged: Called with the reason for each part that cannot be used.
    """
    data, position, message = read_limited(file), _WANDB_HEADER, b""
    while position + _WANDB_HEADER <= len(data):
        if _BLOCK - position % _BLOCK < _WANDB_HEADER:
            position += _BLOCK - position % _BLOCK
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, position)
        start, position = position, position + _WANDB_HEADER + size
        part = data[start + _WANDB_HEADER : position]
        if len(part) < size:
            return  # it may be being written
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            damaged(f"from byte {start:,} on it cannot be read")
            return
        message = part if kind in (_FULL, _FIRST) else message + part
        if kind in (_FULL, _LAST):
            try:
                for number, history, _ in _fields(message):
                    if number == 2 and isinstance(history, bytes):
                        yield _row_of(history)
            except (IndexError, ValueError):
                damaged(f"the record that ends at byte {position:,} is none")


def _row_of(history: bytes) -> bytes:
    cells = []
    for number, item, _ in _fields(history):
        if number == 1 and isinstance(item, bytes):
            fields = [(key, value) for key, value, _ in _fields(item) if isinstance(value, bytes)]
            name = b"/".join(value for key, value in fields if key in (1, 2) and value)
            value = next((value for key, value in fields if key == 16), b"null")
            cells.append(json.dumps(name.decode()).encode() + b":" + value)
    return b"{" + b",".join(cells) + b"}\n"


class _Scalars:
    """The scalars of records, each with the number of its record."""

    def __init__(self) -> None:
        self.damage: list[tuple[int, str]] = []  # number of a record, and what is wrong with it
        self._columns: dict[str, list[tuple[Counts, Counts, Floats]]] = {}  # tag -> records, steps, values

    def add(self, data: Bytes, starts: Counts, numbers: Counts, size: int) -> None:
        """Read messages of one size: thousands at once where they differ in time, step and value alone."""
        at_once = max(_CELLS // max(size, 1), 1)
        for remaining in np.split(numbers, range(at_once, len(numbers), at_once)):
            is_short = len(remaining) >= _MIN_MESSAGES and size <= _MAX_MESSAGE
            messages = data[starts[remaining][:, None] + np.arange(12, 12 + size)] if is_short else data[:0]
            for _ in range(_MAX_KINDS if is_short else 0):
                layout = _layout(messages[0].tobytes()) if len(remaining) else None
                if layout is None:
                    break
                has_layout = _share_layout(messages, layout)
                same_layout, same_numbers = messages[has_layout], remaining[has_layout]
                written = _words(data, starts[same_numbers] + 12 + size)
                is_intact = (written == _NO_CHECKSUM) | (written == _checksums(same_layout))
                for number in same_numbers[~is_intact].tolist():
                    self._add_damaged(number, int(starts[number]))
                steps, values = (column[is_intact] for column in _steps_and_values(same_layout, layout))
                self._columns.setdefault(layout.tag, []).append((same_numbers[is_intact], steps, values))
                messages, remaining = messages[~has_layout], remaining[~has_layout]
            for number in remaining.tolist():
                start = int(starts[number])
                message = data[start + 12 : start + 12 + size].tobytes()
                self._add_record(number, start, message, int(_words(data, starts[[number]] + 12 + size)[0]))

    def _add_record(self, number: int, offset: int, message: bytes, checksum: int) -> None:
        try:
            event = list(_fields(message))
            step = next((value for field, value, _ in event if field == 2 and isinstance(value, int)), 0)
            values = [(tag, value) for tag, value, _ in _values(event)]
        except (IndexError, ValueError, struct.error):
            self.damage.append((number, f"the record at byte {offset:,} is none"))
            return
        if values and checksum not in (_NO_CHECKSUM, masked_checksum(message)):  # slow for images, which are not read
            self._add_damaged(number, offset)
            return
        for tag, value in values:
            scalar = (np.array([number]), np.array([min(step, _MAX_STEPS)]), np.array([value]))
            self._columns.setdefault(tag, []).append(scalar)

    def _add_damaged(self, number: int, offset: int) -> None:
        reason = f"the record at byte {offset:,} is not what was written: its checksum is another"
        self.damage.append((number, reason))

    def result(self) -> StepMetrics:
        """The later of two values of a tag at a step; tags in the order of the file."""
        joined = {
            tag: tuple(map(np.concatenate, zip(*chunks, strict=True)))
            for tag, chunks in self._columns.items()
            if any(len(numbers) for numbers, _, _ in chunks)
        }
        tags = sorted(joined, key=lambda tag: int(joined[tag][0].min()))
        steps = np.unique(np.concatenate([_NO_STEPS, *(joined[tag][1] for tag in tags)]))
        columns = {}
        for tag in tags:
            numbers, tag_steps, values = joined[tag]
            order = np.lexsort((numbers, tag_steps))
            order = order[np.append(np.diff(tag_steps[order]) > 0, True)]
            columns[tag] = Numbers(np.searchsorted(steps, tag_steps[order]), values[order])
        return StepMetrics(steps, columns)


def masked_checksum(data: bytes) -> int:
    """The CRC-32C of bytes, rotated and shifted as in TensorFlow's records.

    Example:
        >>> hex(masked_checksum(b"123456789"))
        '0xc78ab0e5'
    """
    table, checksum = _table(), 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _checksums(messages: Bytes) -> NDArray[np.uint32]:
    """:func:`masked_checksum` of each of M messages of one size, [M]."""
    table = np.array(_table(), dtype=np.uint32)
    checksums = np.full(len(messages), 0xFFFFFFFF, dtype=np.uint32)
    for column in messages.T:
        checksums = table[(checksums ^ column) & 0xFF] ^ (checksums >> 8)
    checksums = ~checksums
    return np.asarray((checksums >> 15 | checksums << 17) + np.uint32(0xA282EAD8), dtype=np.uint32)


@cache
def _table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


def _records(data: Bytes) -> tuple[Counts, Counts, str]:
    """Offset of each record, bytes of its message, and why the rest of the file cannot be read, or an empty text."""
    bounds, buffer = [0], data.data
    while (start := bounds[-1]) + 12 <= len(data):
        bounds.append(start + 16 + int.from_bytes(buffer[start : start + 8], "little"))
    last = bounds.pop()
    starts = np.array(bounds if last > 0 else [], dtype=np.int64)
    written = _words(data, starts + 8)
    bad = np.flatnonzero((written != _NO_CHECKSUM) & (written != _checksums(data[starts[:, None] + np.arange(8)])))
    if len(bad):
        first = bad[0]
        damage = f"from byte {starts[first]:,} on it cannot be read"
        return starts[:first], np.diff(starts[: first + 1]) - 16, damage
    if last <= len(data):
        return starts, np.diff(np.append(starts, last)) - 16, ""
    return starts[:-1], np.diff(starts) - 16, ""  # the last is cut off: it may be being written


def _words(data: Bytes, offsets: Counts) -> NDArray[np.uint32]:
    """The four bytes from each offset on as a number."""
    return np.asarray(data[offsets[:, None] + np.arange(4)].view("<u4")[:, 0])


class _Layout(NamedTuple):
    """Where a message has the parts of its scalar."""

    step: tuple[int, int]  # the first byte, and the one behind the last
    tag: str
    value_at: int  # the first of four bytes


def _layout(message: bytes) -> _Layout | None:
    """The layout of an event of a time, a step and one scalar, in this order; None for any other."""
    try:
        event = list(_fields(message))
        (tag, _, value_at), *rest = _values(event)
    except (IndexError, ValueError, struct.error):
        return None
    keys = message[0], message[_STEP_AT - 1]
    if rest or [number for number, *_ in event] != [1, 2, 5] or keys != (1 << 3 | _FIXED64, 2 << 3 | _VARINT):
        return None
    end = next(index for index in range(_STEP_AT, len(message)) if message[index] < 128) + 1
    return _Layout((_STEP_AT, end), tag, value_at) if end <= _STEP_AT + 8 else None


def _share_layout(messages: Bytes, layout: _Layout) -> Flags:
    """Which messages differ from the first in time, step and value alone, [M]."""
    is_same = messages == messages[0]
    step, value_at = slice(*layout.step), layout.value_at
    is_same[:, step] = (messages[:, step] ^ messages[0, step]) < 128  # the last byte alone is below
    is_same[:, 1 : _STEP_AT - 1] = True
    is_same[:, value_at : value_at + 4] = True
    return np.asarray(is_same.all(axis=1))


def _steps_and_values(messages: Bytes, layout: _Layout) -> tuple[Counts, Floats]:
    """Steps and values, [M]."""
    steps = np.zeros(len(messages), dtype=np.int64)
    for shift, column in enumerate(range(*layout.step)):
        steps |= (messages[:, column].astype(np.int64) & 127) << (7 * shift)
    values = np.ascontiguousarray(messages[:, layout.value_at : layout.value_at + 4]).view("<f4")
    return steps, values[:, 0].astype(np.float64)


def _values(event: list[Field]) -> Iterator[tuple[str, float, int]]:
    """The scalars of an event: tag, value, and the value's offset in the message."""
    summaries = ((value, start) for number, value, start in event if number == 5 and isinstance(value, bytes))
    for summary, summary_start in summaries:
        for number, value, value_start in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                fields = {field: (content, offset) for field, content, offset in _fields(value)}
                (tag, _), (tensor, tensor_start) = fields.get(1, (0, 0)), fields.get(8, (0, 0))
                if isinstance(tensor, bytes):
                    parts = {field: (content, tensor_start + offset) for field, content, offset in _fields(tensor)}
                    fields[2] = parts.get(4, parts.get(5, (0, 0))) if parts.get(1, (0,))[0] == _FLOAT32 else (0, 0)
                simple, offset = fields.get(2, (0, 0))
                if isinstance(tag, bytes) and isinstance(simple, bytes) and len(simple) == 4:
                    yield tag.decode("utf-8"), struct.unpack("<f", simple)[0], summary_start + value_start + offset


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of a message; numbers of fixed length as their bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            start = position
            number, position = _varint(message, position)
            yield key >> 3, number, start
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, position = _varint(message, position)
        if length is None:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, message[position : position + length], position
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = message[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position

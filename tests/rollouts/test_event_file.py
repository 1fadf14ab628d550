import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.event_file import history_in, masked_checksum, scalars_in
from gradscope.rollouts.readers.detect import read_run


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_checksum(length)) + message + struct.pack("<I", masked_checksum(message))


def scalars(path: Path) -> tuple[dict[int, dict[str, float]], list[str]]:
    damage: list[str] = []
    return scalars_in(path, damage.append), damage


def scalar(step: int, tag: bytes, value: float) -> bytes:
    number = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(number)]) + number
    return b"\x09" + bytes(8) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary


def test_scalars_by_step_and_the_later_of_two(tmp_path: Path) -> None:
    version = b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    events = [version, scalar(1, b"a", 0.5), scalar(1, b"b", 1.5), scalar(2, b"a", 2.0), scalar(2, b"a", 3.0)]
    (tmp_path / "events").write_bytes(b"".join(map(record, events)))
    assert scalars(tmp_path / "events") == ({1: {"a": 0.5, "b": 1.5}, 2: {"a": 3.0}}, [])


@pytest.mark.parametrize("number", [4, 5])
def test_a_number_may_be_a_tensor_of_one(tmp_path: Path, number: int) -> None:
    """TensorFlow 2 writes its bytes, TensorBoard's own writer a list of floats; a tensor of another type is none."""
    tensors = [b"\x08\x01" + field(2, b"") + field(number, struct.pack("<f", step / 2)) for step in range(20)]
    tensors.append(b"\x08\x02" + field(number, struct.pack("<d", 9.0)))
    values = [field(1, field(1, b"a") + field(8, tensor) + field(9, field(1, b"scalars"))) for tensor in tensors]
    events = [b"\x09" + bytes(8) + b"\x10" + bytes([step]) + field(5, value) for step, value in enumerate(values)]
    (tmp_path / "events").write_bytes(b"".join(map(record, events)))
    assert scalars(tmp_path / "events") == ({step: {"a": step / 2} for step in range(20)}, [])


TIME = b"\x09" + bytes(8)


def number(tag: bytes, value: float) -> bytes:
    return field(1, field(1, tag) + b"\x15" + struct.pack("<f", value))


@pytest.mark.parametrize(
    ("event", "last"),
    [
        pytest.param(lambda n: TIME + bytes([16, n | 128, n % 3]) + field(5, number(b"a", n)), 273, id="of two bytes"),
        pytest.param(
            lambda n: TIME + bytes([16, n | 128, *[255] * 8, 1]) + field(5, number(b"a", n)), 2**63 - 1, id="below 0"
        ),
        pytest.param(lambda n: TIME + bytes([16, n, 16, n + 1]) + field(5, number(b"a", n)), 19, id="two steps"),
        pytest.param(lambda n: TIME + bytes([17, *[n] * 8]) + field(5, number(b"a", n)), 0, id="of fixed length"),
        pytest.param(lambda n: TIME + field(5, number(b"a", n)), 0, id="no step"),
        pytest.param(lambda n: bytes([16, n]) + field(5, number(b"a", n)), 19, id="no time"),
        pytest.param(lambda n: TIME + bytes([16 + n % 2 * 8, n]) + field(5, number(b"a", n)), 18, id="another field"),
        pytest.param(
            lambda n: TIME + bytes([16, n]) + field(5, number(b"a", n) + number(b"b", -n)), 19, id="two values"
        ),
        pytest.param(lambda n: TIME + bytes([16, n]) + field(5, number(b"a%d" % (n % 2), n)), 19, id="two tags"),
    ],
)
def test_twenty_of_a_size_are_read_like_each_alone(event: Callable[[int], bytes], last: int, tmp_path: Path) -> None:
    """Where they differ in time, step and value alone, thousands are read at once."""
    path, expected, damaged = tmp_path / "events", dict[int, dict[str, float]](), bytearray(record(event(20)))
    damaged[-5] ^= 1
    records = [*(record(event(number)) for number in range(20)), bytes(damaged)]
    for data in records:
        path.write_bytes(data)
        for step, values in scalars(path)[0].items():
            expected.setdefault(step, {}).update(values)
    path.write_bytes(b"".join(records))
    assert scalars(path)[0] == expected
    assert max(expected) == last


@pytest.mark.parametrize("lost", [1, 10, 30])
def test_a_file_that_is_cut_off_has_its_whole_records(lost: int, tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes((record(scalar(1, b"a", 0.5)) + record(scalar(2, b"a", 2.0)))[:-lost])
    assert scalars(tmp_path / "events") == ({1: {"a": 0.5}}, [])


def test_messages_of_another_kind_are_left_out(tmp_path: Path) -> None:
    double = TIME + field(5, field(1, field(1, b"a") + b"\x11" + bytes(8)))
    messages = [b"\x2a\x05\x0a\x7f\x0a\x01a", b"\x0b", b"\xff", b"", double]
    (tmp_path / "events").write_bytes(b"".join(map(record, [*messages, scalar(1, b"a", 0.5)])))
    metrics, damage = scalars(tmp_path / "events")
    assert metrics == {1: {"a": 0.5}}
    assert [sentence.endswith(" is none") for sentence in damage] == [True] * 2


def test_damage_is_reported_and_costs_its_record_or_the_rest(tmp_path: Path) -> None:
    records = [record(scalar(step, b"a", float(step))) for step in (1, 2, 3)]
    size = len(records[0])
    intact = b"".join(records)
    for offset, expected, reason in (
        (size + size - 6, {1: {"a": 1.0}, 3: {"a": 3.0}}, f"the record at byte {size} is not what was written"),
        (size + 1, {1: {"a": 1.0}}, f"from byte {size} on it cannot be read"),
        (2 * size - 1, {1: {"a": 1.0}, 3: {"a": 3.0}}, f"the record at byte {size} is not what was written"),
    ):
        damaged = bytearray(intact)
        damaged[offset] ^= 4
        (tmp_path / "events").write_bytes(damaged)
        metrics, (sentence,) = scalars(tmp_path / "events")
        assert (metrics, sentence.startswith(reason)) == (expected, True)


def test_a_writer_may_make_no_checksums(tmp_path: Path) -> None:
    message = scalar(1, b"a", 0.5)
    (tmp_path / "events").write_bytes(struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4))
    assert scalars(tmp_path / "events") == ({1: {"a": 0.5}}, [])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes of a message of protocol buffers."""
    size, sizes = len(content), b""
    while size > 127:
        size, sizes = size >> 7, sizes + bytes([size & 127 | 128])
    return (
        bytes([number << 3 | 2] if number < 16 else [number << 3 & 127 | 130, number >> 4])
        + sizes
        + bytes([size])
        + content
    )


def history(*, key: int = 1, **cells: Any) -> bytes:
    """A record of a row, with fields of other numbers and types; a cell that is None has no value."""
    values = {name: b"" if value is None else field(16, json.dumps(value).encode()) for name, value in cells.items()}
    items = (field(1, field(key, name.encode()) + value + b"\x08\x07") for name, value in values.items())
    return b"\x10\x01" + field(2, b"\x08\x01" + b"".join(items) + field(3, b"other"))


def wandb_file(path: Path, *messages: bytes) -> Path:
    """W&B's file of a run, whose records are cut at every 32,768 bytes."""
    data = b":W&B\xe1\xbe\x00"
    for message in messages:
        rest, kinds = message, (1, 2)  # of a whole record and of a first part
        while rest or kinds == (1, 2):
            room = 32_768 - len(data) % 32_768
            if room < 7:
                data += bytes(room)
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = bytes([kinds[bool(rest)]])
            data += struct.pack("<IHc", zlib.crc32(kind + part), len(part), kind) + part
            kinds = (4, 3)  # of the last part and of one between
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", [32_600, 30_876, 30_881])  # the last two leave 7 bytes and 2 bytes of a block
def test_rows_of_wandb_in_parts_of_any_size_and_other_records_between(size: int, tmp_path: Path) -> None:
    long = [history(_step=step, reward=step / 2, note="x" * size) for step, size in enumerate((100_000, size, 1, 65))]
    messages = [field(17, b"run"), *long, field(7, b"stats"), history(key=2, _step=4, reward=9, note=None)]
    path = wandb_file(tmp_path / "run-1.wandb", *messages)
    damage: list[str] = []
    rows = [json.loads(line) for line in history_in(path, damage.append)]
    assert [(row["_step"], row["reward"]) for row in rows] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5), (4, 9)]
    for log in (path, tmp_path):
        assert read_run(log, metrics_alone=True).metrics == {
            step: {"reward": step / 2 if step < 4 else 9.0} for step in range(5)
        }
    assert (rows[0]["note"], rows[-1]["note"], damage) == ("x" * 100_000, None, [])


def test_what_is_damaged_in_a_file_of_wandb_costs_its_record_or_the_rest(tmp_path: Path) -> None:
    broken = [b"\x0b", field(2, b"\xff"), field(2, field(1, field(1, b"\xff") + field(16, b"1")))]
    unparsed = history(_step=2).replace(b"2", b"?")
    path = wandb_file(
        tmp_path / "run-1.wandb", history(_step=1, reward=0.5), *broken, unparsed, history(_step=3, reward=1)
    )
    intact, begin = path.read_bytes(), len(b":W&B...")
    for data, num_rows, reasons in (
        (intact, 3, [" is none"] * 3),
        (intact[:-1], 2, [" is none"] * 3),
        (intact[:40] + b"?" + intact[41:], 0, [f"from byte {begin} on it cannot be read"]),
        (intact + bytes(7), 3, [*[" is none"] * 3, f"from byte {len(intact):,} on it cannot be read"]),
    ):
        path.write_bytes(data)
        damage: list[str] = []
        assert len(list(history_in(path, damage.append))) == num_rows
        assert all(sentence.endswith(reason) for sentence, reason in zip(damage, reasons, strict=True))
    path.write_bytes(intact)
    assert [reason.first for reason in read_run(path, metrics_alone=True).source.quarantined.reasons] == [f"{path}:2"]

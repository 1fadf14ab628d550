import struct
from pathlib import Path

import pytest

from gradscope.rollouts.event_file import masked_checksum, scalars_in


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


@pytest.mark.parametrize("lost", [1, 10, 30])
def test_a_file_that_is_cut_off_has_its_whole_records(lost: int, tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes((record(scalar(1, b"a", 0.5)) + record(scalar(2, b"a", 2.0)))[:-lost])
    assert scalars(tmp_path / "events") == ({1: {"a": 0.5}}, [])


def test_messages_of_another_kind_are_left_out(tmp_path: Path) -> None:
    odd = [b"\x2a\x05\x0a\x7f\x0a\x01a", b"\x0b", b"\xff", b""]
    (tmp_path / "events").write_bytes(b"".join(map(record, [*odd, scalar(1, b"a", 0.5)])))
    metrics, damage = scalars(tmp_path / "events")
    assert metrics == {1: {"a": 0.5}}
    assert all(sentence.endswith(" is none") for sentence in damage)


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

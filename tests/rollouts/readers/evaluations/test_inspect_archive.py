from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations import inspect_archive
from gradscope.rollouts.readers.evaluations.inspect_archive import has_succeeded


def archive(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            stream.writestr(name, json.dumps(content))
    return path


def zstd_archive(path: Path, members: dict[str, Any], *, frame: int = 20) -> Path:
    """An archive as inspect_ai writes it: zstd, a member in several frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            data = json.dumps(content).encode()
            parts = [data[at : at + frame] for at in range(0, len(data), frame)]
            stream.writestr(name, b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts))
            info = stream.getinfo(name)  # written into the directory of the archive as it is closed
            info.compress_type, info.file_size, info.CRC = 93, len(data), zlib.crc32(data)
    return path


SAMPLE = {"id": "a", "epoch": 1, "input": "long " * 40_000, "scores": {"m": {"value": "C"}}}


@pytest.mark.parametrize("frame", [1 << 17, 1 << 20])
def test_members_of_zstd_are_read_frame_by_frame(tmp_path: Path, frame: int) -> None:
    log = zstd_archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": SAMPLE}, frame=frame)
    (rollout,) = read_run(log).groups[0].rollouts
    assert (rollout.reward, len(rollout.prompt)) == (1.0, 200_000)


@pytest.mark.parametrize("change", ["size", "checksum", "data", "offset"])
def test_members_of_zstd_that_are_damaged_are_an_error(tmp_path: Path, change: str) -> None:
    log = zstd_archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": SAMPLE}, frame=1 << 20)
    raw = bytearray(log.read_bytes())
    central = raw.rindex(b"PK\x01\x02")
    match change:
        case "size":
            raw[central + 24 : central + 28] = (1000).to_bytes(4, "little")
        case "checksum":
            raw[central + 16] ^= 1
        case "data":
            raw[60:70] = bytes(10)
        case "offset":
            raw[central + 20 : central + 24] = (7).to_bytes(4, "little")
    log.write_bytes(raw)
    with pytest.raises(InputError, match=r"a\.eval cannot be read"):
        read_run(log)


def test_a_log_is_finished_where_its_header_says_so(tmp_path: Path) -> None:
    def finished(**members: Any) -> bool:
        return has_succeeded(
            zstd_archive(tmp_path / "a.eval", {f"{name}.json": cells for name, cells in members.items()})
        )

    assert finished(header={"status": "success"})
    assert not finished(header={"status": "error"})
    assert not finished(header=["success"])
    assert not finished(start={"status": "success"})
    assert not has_succeeded(tmp_path / "none.eval")
    (tmp_path / "text.eval").write_text("no zip")
    assert not has_succeeded(tmp_path / "text.eval")


def test_inspect_archives_that_cannot_be_read_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": {"id": "a"}})
    raw = log.read_bytes()
    central = raw.index(b"PK\x01\x02")
    for method, reason in ((93, "ZSTD"), (9, "That compression method is not supported"), (14, "cannot be read")):
        other = tmp_path / "other.eval"
        other.write_bytes(raw[: central + 10] + method.to_bytes(2, "little") + raw[central + 12 :])
        with pytest.raises(InputError, match=reason):
            read_run(other)
    locked = tmp_path / "locked.eval"
    locked.write_bytes(raw[: central + 8] + (1).to_bytes(2, "little") + raw[central + 10 :])
    with pytest.raises(InputError, match="is encrypted"):
        read_run(locked)
    chunks = archive(tmp_path / "chunks.eval", {"samples/a_epoch_1/part.json": {}})
    with pytest.raises(InputError, match="splits each sample into chunks") as caught:
        read_run(chunks)
    assert f"inspect log convert {chunks} --to json" in (caught.value.hint or "")
    monkeypatch.setattr(inspect_archive, "MOST_ROW", 3)
    with pytest.raises(InputError, match="a sample of more than 0 MiB"):
        read_run(log)
    damaged = tmp_path / "damaged.eval"
    damaged.write_bytes(raw.replace(b'"id"', b'"ix"', 1))
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot be read: Bad CRC"):
        read_run(damaged)

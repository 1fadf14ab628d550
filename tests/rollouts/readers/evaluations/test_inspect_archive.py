from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations import inspect_archive


def archive(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            stream.writestr(name, json.dumps(content))
    return path


def test_inspect_archives_that_cannot_be_read_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": {"id": "a"}})
    raw = log.read_bytes()
    central = raw.index(b"PK\x01\x02")
    zstd = tmp_path / "zstd.eval"
    zstd.write_bytes(raw[: central + 10] + (93).to_bytes(2, "little") + raw[central + 12 :])
    with pytest.raises(InputError, match="compressed with zstd") as caught:
        read_run(zstd)
    assert f"inspect log convert {zstd} --to json" in (caught.value.hint or "")
    locked = tmp_path / "locked.eval"
    locked.write_bytes(raw[: central + 8] + (1).to_bytes(2, "little") + raw[central + 10 :])
    with pytest.raises(InputError, match="is encrypted"):
        read_run(locked)
    with pytest.raises(InputError, match="splits each sample into chunks"):
        read_run(archive(tmp_path / "chunks.eval", {"samples/a_epoch_1/part.json": {}}))
    monkeypatch.setattr(inspect_archive, "_MOST_BYTES", 3)
    with pytest.raises(InputError, match="a sample of more than 1 GiB"):
        read_run(log)
    damaged = tmp_path / "damaged.eval"
    damaged.write_bytes(raw.replace(b'"id"', b'"ix"', 1))
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot be read: Bad CRC"):
        read_run(damaged)

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope.errors import InputError
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.slime.torch_archive import StandIn, read_archive
from tests.rollouts.readers.lines import rewards_of


def archive(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(document))
    return path


def sample(index: int, **cells: Any) -> dict[str, Any]:
    return {"group_index": 0, "index": index, "tokens": [5, 9, 2], "response_length": 2, "reward": 1.0, **cells}


class Hostile:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_nothing_in_an_archive_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    odd = {"hostile": Hostile(f"touch {ran}"), "ordered": OrderedDict(a=1), "kind": Path}
    path = archive(tmp_path / "rollout_data" / "0.pt", {"rollout_id": 0, "samples": [sample(0, metadata=odd)], **odd})
    assert rewards_of(read_run(path)) == {"0": (1.0,)}
    found = read_archive(path)
    assert isinstance(found["hostile"], StandIn)
    assert found["kind"] is StandIn
    assert not ran.exists()


def test_tensors_and_filled_objects_are_stand_ins(tmp_path: Path) -> None:
    torch.save({"tensor": torch.ones(2), "lists": [1, "a"]}, tmp_path / "a.pt")
    found = read_archive(tmp_path / "a.pt")
    assert isinstance(found["tensor"], StandIn)
    assert found["lists"] == [1, "a"]
    filled = StandIn()
    filled.append(1)
    assert vars(filled) == {}


@pytest.mark.parametrize("content", [b"", b"\x80\x04", pickle.dumps([1])[:-1], b"\x80\x04]\x94K\x01s."])
def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", content)
    with pytest.raises(InputError, match=r"0\.pt cannot be read"):
        read_archive(path)
    with pytest.raises(InputError):
        read_run(path)

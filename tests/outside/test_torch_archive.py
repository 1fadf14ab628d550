import collections
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope.errors import InputError
from gradscope.outside.torch_archive import StandIn, num_parts, read_archive, require_bounded
from gradscope.rollouts.readers.detect import read_run
from tests.rollouts.readers.lines import rewards_of
from tests.rollouts.readers.trainers.test_slime import archive, sample


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
    content = read_archive(path)
    assert isinstance(content["hostile"], StandIn)
    assert content["kind"] is StandIn
    assert not ran.exists()


def test_tensors_and_filled_objects_are_stand_ins(tmp_path: Path) -> None:
    torch.save({"tensor": torch.ones(2), "lists": [1, "a"]}, tmp_path / "a.pt")
    content = read_archive(tmp_path / "a.pt")
    assert isinstance(content["tensor"], StandIn)
    assert content["lists"] == [1, "a"]
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


PLAIN = [1, -5, 70000, 2**80, 10**700, 2.5, "aé" * 300, b"xx" * 200, None, True, (), (1,), (1, 2), (1, 2, 3), {"a": []}]
MANY = [{"tokens": list(range(300)), "text": f"sample {number}"} for number in range(300)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value", [PLAIN, MANY, collections.OrderedDict(a={1, 2}, b=frozenset("ab")), "x" * 70000, bytearray(9)]
)
def test_what_python_writes_is_bounded(protocol: int, value: Any) -> None:
    require_bounded(pickle.dumps(value, protocol=protocol))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "place 2147483647 of the memo"),
        (b"N.r\xff\xff\xff\x7f.", "place 2147483647 of the memo"),
        (b"Np99999999\n.", "place 99999999 of the memo"),
        (b"\x80\x04\x8e\x00\x00\x00\x00\x10\x00\x00\x00.", "expected .* bytes in a bytes8"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "expected .* bytes in a bytearray8"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "an argument is longer"),
        (b"\x80\x02\xfe.", "opcode b.* unknown"),
        (b"\x80\x02\x82\x01.", "EXT1 is no operation"),
        (b"Nr\x01", "an argument is longer"),
        (b"cos\nsystem", "no newline found"),
    ],
)
def test_what_declares_more_than_it_holds_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Exception, match=why):
        require_bounded(data)


def test_parts_are_counted_as_often_as_they_are_reached() -> None:
    assert num_parts([1, [2, 3], {"a": 4}]) == 7
    laughs: list[Any] = [0]
    for _ in range(50):
        laughs = [laughs, laughs]
    assert num_parts(laughs) > 1 << 50
    assert num_parts(1) == 1

"""What a pickle declares is looked up before it is loaded."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import pytest

from gradscope.rollouts.readers.slime.pickle_bounds import num_parts, require_bounded

PLAIN = [1, -5, 70000, 2**80, 10**700, 2.5, "aé" * 300, b"xx" * 200, None, True, (), (1,), (1, 2), (1, 2, 3), {"a": []}]
MANY = [{"tokens": list(range(300)), "text": f"sample {at}"} for at in range(300)]


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
        (b"Np99999999\n.", "a place of the memo"),
        (b"\x80\x04\x8e\x00\x00\x00\x00\x10\x00\x00\x00.", "an argument is longer"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "an argument is longer"),
        (b"\x80\x02X\xff\xff\xff\x7fa.", "an argument is longer"),
        (b"\x80\x02\xfe.", "is no operation"),
        (b"Nr\x01", "unpack_from requires"),
        (b"cos\nsystem", "subsection not found"),
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

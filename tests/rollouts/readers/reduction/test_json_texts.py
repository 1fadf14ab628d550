import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from gradscope.rollouts.readers.parsing.cells import digest
from gradscope.rollouts.readers.reduction.json_texts import (
    digests_of,
    flat_length,
    flat_lengths,
    ids_digest,
    json_of,
    num_ids,
    nums_ids,
)


@pytest.mark.parametrize(
    ("text", "length", "ids"),
    [
        ("[]", 0, 0),
        ("[1]", 1, 1),
        ("[1, 20,3]", 3, 3),
        ("[-1]", 1, -1),
        ("[1.5, null, true, -1e5]", 4, -1),
        ("[[1]]", -1, -1),
        ('["a"]', -1, -1),
        ("null", -1, -1),
        ("3", -1, -1),
    ],
)
def test_lists_are_counted_as_they_are_written(text: str, length: int, ids: int) -> None:
    assert (flat_length(text.encode()), num_ids(text.encode())) == (length, ids)
    if ids >= 0:
        assert ids_digest(text.encode()) == digest(json.loads(text))


@pytest.mark.parametrize("odd", [b"null", b"[-1]", b"[[1],[2]]", b"3"])
def test_lists_of_many_rows_are_counted_as_each_alone(odd: bytes) -> None:
    plain = [b"[]", b"[ ]", b"[7]", b"[1, 20,3]"]
    for texts in (plain, [*plain, odd], [odd]):
        assert nums_ids([b"[%b]" % text for text in texts], depth=2).tolist() == list(map(num_ids, texts))
        assert nums_ids(texts).tolist() == list(map(num_ids, texts))
        assert flat_lengths(texts).tolist() == list(map(flat_length, texts))
    for text in (b"[[7], 8]", b"[8, [7]]", b"[[7], [8]]", b"[7, 8]"):
        assert flat_lengths([text, b"[[7, 8]]"], depth=2).tolist() == [-1, 2]


@given(
    st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4), min_size=1, max_size=2),
    st.booleans(),
)
def test_a_digest_is_of_what_is_written_and_not_of_how(cells: list[Any], ascii_only: bool) -> None:
    texts = [json.dumps(cell, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for cell in cells]
    for written in (texts, [text.replace(b"/", b"\\/") for text in texts]):
        assert digests_of([tuple(written)]) == [digest(*cells)]


def test_a_cell_is_json_however_it_was_decoded() -> None:
    assert [json_of(cell) for cell in (Raw(b" [1]"), UNSET, "a", None)] == [b" [1]", b"null", b'"a"', b"null"]

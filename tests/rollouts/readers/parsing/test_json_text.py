import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from gradscope.rollouts.readers.parsing import json_text
from gradscope.rollouts.readers.parsing.cells import digest


@pytest.mark.parametrize(
    ("text", "length", "ids"),
    [
        ("[]", 0, 0),
        ("[1]", 1, 1),
        ("[1, 20,3]", 3, 3),
        ("[-1]", 1, -1),
        ("[1.5, null, true, -1e5]", 4, -1),
        *((text, -1, -1) for text in ("[[1]]", '["a"]', "null", "3")),
    ],
)
def test_lists_are_counted_as_they_are_written(text: str, length: int, ids: int) -> None:
    assert (json_text.flat_length(text.encode()), json_text.flat_length(text.encode(), json_text.ID_CELLS)) == (
        length,
        ids,
    )
    if ids >= 0:
        assert json_text.ids_digest(text.encode()) == digest(json.loads(text))


def test_ids_are_named_alike_however_they_are_spaced() -> None:
    for texts in (["[1, 20, 3]", "[]", "[7]"], ["[1,20, 3]", "[ 7 ]", "[1,\n2]", "[-1]"]):
        assert json_text.digests_of_ids([*map(str.encode, texts)]) == [digest(json.loads(text)) for text in texts]
    assert json_text.digests_of_ids([b"null", b"[1.5]", b'["a"]']) == [""] * 3
    assert json_text.digests_of_ids([]) == []


@pytest.mark.parametrize("strange", [b"null", b"[-1]", b"[[1],[2]]", b"3", b"[1,\n2]"])
def test_lists_of_many_rows_are_counted_as_each_alone(strange: bytes) -> None:
    simple, count_ids = [b"[]", b"[ ]", b"[7]", b"[1, 20,3]"], partial(json_text.flat_length, cells=json_text.ID_CELLS)
    for texts in (simple, [*simple, strange], [strange], []):
        rows = list(map(Raw, texts))
        lines = [text.replace(b"\n", b" ") for text in texts]
        lengths, ids = (
            [json_text.NULL if text == b"null" else name(text) for text in lines]
            for name in (json_text.flat_length, count_ids)
        )
        assert json_text.nums_ids(rows).tolist() == ids
        assert json_text.flat_lengths(rows).tolist() == lengths
        nested = [Raw(b"[%b]" % text) for text in texts]
        assert json_text.nums_ids(nested, depth=2).tolist() == list(map(count_ids, lines))
    for text in (b"[[7], 8]", b"[8, [7]]", b"[[7], [8]]", b"[7, 8]"):
        assert json_text.flat_lengths([Raw(text), Raw(b"[[7, 8]]")], depth=2).tolist() == [-1, 2]
    assert json_text.nums_ids([[1, 2], None, "1", UNSET]).tolist() == [2, json_text.NULL, -1, json_text.NULL]


@given(
    st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4), min_size=1, max_size=2),
    st.booleans(),
)
def test_a_digest_is_of_what_is_written_and_not_of_how(row: list[Any], ascii_only: bool) -> None:
    texts = [json.dumps(cell, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for cell in row]
    for written in (texts, [text.replace(b"/", b"\\/") for text in texts]):
        assert json_text.digests_of([tuple(written)]) == [digest(*row)]


def test_a_cell_is_json_however_it_was_decoded() -> None:
    assert [json_text.json_of(cell) for cell in (Raw(b" [1]"), UNSET, "a", None)] == [b" [1]", b"null", b'"a"', b"null"]

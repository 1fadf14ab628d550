from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType

from gradscope.rollouts.readers.parsing.cells import digest, finite_or_none, whole_number
from gradscope.rollouts.readers.reduction.columns import (
    NOT_COMPARED,
    Keys,
    digest_of,
    flat_length,
    flat_lengths,
    id_texts,
    ids_digest,
    json_of,
    num_ids,
    numbers_of,
    nums_ids,
    rewards_of,
    sample_hashes,
    step_numbers,
    whole_names_of,
)
from tests.rollouts.readers.reduced import STRANGE


def test_a_struct_has_each_key_once_under_any_name() -> None:
    keys = Keys()
    first, missing, again = keys("a.b é", int), keys("", float | UnsetType), keys("a.b é", str)
    row = msgspec.json.decode(b'{"a.b \\u00e9": "x", "z": 1}', type=keys.struct())
    assert (first(row), missing(row), again(row)) == ("x", UNSET, "x")
    assert list(keys) == ["a.b é", ""]
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"a.b \\u00e9": "x", "z": 1}', type=keys.struct(is_complete=True))


@pytest.mark.parametrize(("key", "is_plain"), [("a", True), ("é", True), *((key, False) for key in '"\\\n\ud800')])
def test_keys_that_a_struct_can_have(key: str, is_plain: bool) -> None:
    keys = Keys()
    keys(key, int)
    assert keys.are_plain == is_plain


@pytest.mark.parametrize("cells", [[1, 2.5, True, None], [10**400, 1.0], list(STRANGE), [UNSET, 1], []])
def test_numbers_steps_and_ids_are_those_of_the_row_reader(cells: list[Any]) -> None:
    expected = [finite_or_none(None if cell is UNSET else cell) for cell in cells]
    np.testing.assert_array_equal(numbers_of(cells), [math.nan if one is None else one for one in expected])
    steps = [whole_number(cell) for cell in cells]
    assert step_numbers(cells).tolist() == [-1 if step is None else step for step in steps]
    assert whole_names_of(cells) == ["" if step is None else str(step) for step in steps]
    assert id_texts(cells) == [str(cell) if type(cell) in (str, int) else "" for cell in cells]


def test_steps_that_no_float_tells_apart_are_none() -> None:
    assert step_numbers([1, 1 << 53, (1 << 53) + 1, 1 << 70, -1]).tolist() == [1, 1 << 53, -1, -1, -1]


def test_objects_of_rewards_become_columns() -> None:
    found = rewards_of([{"a": 1, "note": "x"}, None, {"b": True, "a": "x"}, {"a": None}, [1]])
    assert list(found) == ["reward/a", "reward/b"]
    np.testing.assert_array_equal(found["reward/a"], [1.0, math.nan, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(found["reward/b"], [math.nan, math.nan, 1.0, math.nan, math.nan])


def test_samples_are_told_apart_by_their_names() -> None:
    found = sample_hashes(["a", "b", None, "a", "\ud800"])
    assert found[0] == found[3]
    assert len({*found.tolist()}) == 4
    assert found[2] == NOT_COMPARED


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
        assert nums_ids(texts).tolist() == list(map(num_ids, texts))
        assert flat_lengths(texts).tolist() == list(map(flat_length, texts))


@given(
    st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4), min_size=1, max_size=2),
    st.booleans(),
)
def test_a_digest_is_of_what_is_written_and_not_of_how(cells: list[Any], ascii_only: bool) -> None:
    texts = [json.dumps(cell, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for cell in cells]
    assert digest_of(*texts) == digest(*cells)
    assert digest_of(*(text.replace(b"/", b"\\/") for text in texts)) == digest(*cells)


def test_a_cell_is_json_however_it_was_decoded() -> None:
    assert [json_of(cell) for cell in (Raw(b" [1]"), UNSET, "a", None)] == [b" [1]", b"null", b'"a"', b"null"]

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import InputError
from gradscope.outside.plain_json import MAX_DEPTH, RefusedJsonError, is_deeper, parse_json, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(VALUES)
def test_what_python_writes_is_read_back(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_words_for_what_is_not_finite_are_numbers() -> None:
    nan, infinity = parse_json("[NaN, -Infinity]")
    assert math.isnan(nan)
    assert infinity == -math.inf


@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_depth_is_bounded_and_brackets_within_text_are_none(bracket: str) -> None:
    opening = bracket[0] if bracket == "[]" else '{"a":'
    inner = "0"
    assert parse_json(opening * MAX_DEPTH + inner + bracket[1] * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(RefusedJsonError, match="nested deeper than 100 levels"):
            parse_json(opening * depth + inner + bracket[1] * depth)
    assert parse_json(json.dumps(bracket * 1000)) == bracket * 1000
    assert len(parse_json(json.dumps([[] for _ in range(1000)]))) == 1000


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"\\u0061": 1, "a": 2}'])
def test_a_key_that_is_named_twice_counts_as_its_last(text: str) -> None:
    assert parse_json(text) == {"a": 2}


def test_a_number_of_too_many_digits_is_refused() -> None:
    assert parse_json("9" * 4300) > 0
    with pytest.raises(RefusedJsonError, match="more than 4300 digits"):
        parse_json("9" * 4301)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[1,]", b"{'a': 1}", b"1 2"])
def test_what_is_no_json_is_an_ordinary_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|utf-8|Extra|Illegal") as caught:
        parse_json(text)
    assert not isinstance(caught.value, RefusedJsonError)


def test_a_file_is_read_with_its_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(file) == {"a": 1}
    with pytest.raises(InputError, match="is a device"):
        read_json(Path("/dev/zero"))


def test_parts_in_several_places_are_looked_at_once() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    assert is_deeper(value, 59)
    assert not is_deeper(value, 61)
    assert not is_deeper(1, 0)

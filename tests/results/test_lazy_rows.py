from __future__ import annotations

import json

import numpy as np

from gradscope.results.envelope import PlainRows, render_json, to_jsonable
from gradscope.results.lazy_rows import LazyRows

ROWS = LazyRows({"name": np.array(["a", "rows b", None], dtype=object), "number": np.arange(3)})


def test_rows_are_made_when_they_are_asked_for() -> None:
    assert len(ROWS) == 3
    assert ROWS[1] == {"name": "rows b", "number": 1}
    assert ROWS[-1]["name"] is None
    assert ROWS[:2] == [{"name": "a", "number": 0}, {"name": "rows b", "number": 1}]
    assert repr(ROWS) == "<3 rows of name, number>"
    assert len(LazyRows({})) == 0
    assert LazyRows({"name": np.array(["a", "rows b", None], dtype=object), "number": np.arange(3)}) == ROWS
    assert LazyRows({"name": np.array(["a"], dtype=object)}) != ROWS


def test_each_row_is_one_line_of_the_document_and_the_document_is_the_same() -> None:
    document = {"result": {"rows": to_jsonable(ROWS), "none": to_jsonable(LazyRows({})), "text": 'a "quote"'}}
    text = render_json(document)
    assert '      {"name": "rows b", "number": 1},\n' in text
    assert json.loads(text) == document
    assert isinstance(document["result"]["rows"], PlainRows)

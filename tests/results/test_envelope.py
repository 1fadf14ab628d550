import json
import math
import os
import pickle
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.results.envelope import (
    Deferring,
    LazyRows,
    PlainRows,
    build_document,
    deferred,
    render_json,
    sha256_of,
    to_jsonable,
)
from tests.render import examples


class Costly(Deferring, frozen=True, kw_only=True):
    cheap: int
    costly: int


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


def test_a_deferred_field_is_computed_once_and_only_when_it_is_read() -> None:
    calls: list[int] = []
    record = Costly(cheap=1, costly=deferred(lambda: calls.append(1) or 2))  # type: ignore[func-returns-value]
    assert (record.cheap, calls) == (1, [])
    assert (record.costly, record.costly, calls) == (2, 2, [1])
    assert to_jsonable(Costly(cheap=1, costly=deferred(lambda: 2))) == {"cheap": 1, "costly": 2}
    assert replace(Costly(cheap=0, costly=deferred(lambda: 2)), cheap=1) == record == pickle.loads(pickle.dumps(record))


def test_each_row_is_one_line_of_the_document_and_the_document_is_the_same() -> None:
    document = {"result": {"rows": to_jsonable(ROWS), "none": to_jsonable(LazyRows({})), "text": 'a "quote"'}}
    text = render_json(document)
    assert '      {"name": "rows b", "number": 1},\n' in text
    assert json.loads(text) == document
    assert isinstance(document["result"]["rows"], PlainRows)


def test_the_envelope_names_inputs_with_their_digest(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"abc")
    document = build_document("rank", {}, files=[file], definitions={"x": "y"})
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert document["inputs"] == [{"path": str(file), "sha256": digest}]
    assert document["schema"] == "gradscope/rank"
    assert document["definitions"] == {"x": "y"}
    assert datetime.fromisoformat(document["created_at"]).tzinfo is not None
    assert sha256_of(file) == digest


def test_an_undefined_number_is_null_with_its_reason_beside_it() -> None:
    assert to_jsonable(Estimate.undefined_because("no group is mixed", num_units=3)) == {
        "value": None,
        "low": None,
        "high": None,
        "num_units": 3,
        "undefined": "no group is mixed",
    }


def test_what_repeats_the_document_for_people_is_not_in_it() -> None:
    report = examples.rank_report()
    assert report.headline
    assert "headline" not in to_jsonable(report)
    assert "findings" in to_jsonable(report)


def test_mappings_sequences_and_paths_become_plain_json() -> None:
    assert to_jsonable({1: (Path("a/b"), [True, None, 0.1])}) == {"1": ["a/b", [True, None, 0.1]]}


def test_anything_else_is_a_bug_of_the_caller() -> None:
    with pytest.raises(TypeError, match="object does not belong in a result"):
        to_jsonable([object()])


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_json_is_strict(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_json({"x": number})


def test_floats_are_not_rounded() -> None:
    assert json.loads(render_json({"x": 0.1 + 0.2}))["x"] == 0.1 + 0.2


def test_a_document_cannot_act_on_the_terminal_that_shows_it() -> None:
    text = render_json({"x": examples.HOSTILE + "\x9b\udc80"})
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["x"] == examples.HOSTILE + "\x9b\udc80"


def test_a_number_that_is_not_finite_is_its_name() -> None:
    document = to_jsonable({"logged": [math.nan, math.inf, -math.inf, 0.5]})
    assert document == {"logged": ["NaN", "Infinity", "-Infinity", 0.5]}
    assert [str(float(name)) for name in document["logged"]] == ["nan", "inf", "-inf", "0.5"]


def test_an_input_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    document = build_document("x", {}, files=[tmp_path / "pipe", tmp_path / "gone"], definitions={})
    assert [entry["sha256"] for entry in document["inputs"]] == [None, None]


@pytest.mark.parametrize(
    "value", [[], {}, [[], {}], 1e22, 1e-7, -0.0, 5e-324, 2**70, "é\u2028\x7f", "\ud800", {"a": [1.5, {"b": None}]}]
)
def test_a_document_is_laid_out_as_json_itself_lays_it_out(value: object) -> None:
    assert render_json({"x": value, "y": True}) == json.dumps({"x": value, "y": True}, indent=2) + "\n"

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec import UNSET

from gradscope.rollouts.readers.parsing.cells import digest, prompt_text_id
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.reduction import columns


def read(lines: columns.LineColumns | None, text: bytes) -> columns.Columns:
    assert lines is not None
    return lines.to_columns(lines.decoder.decode_lines(text), Path("a.jsonl"))


def by_key(rows: columns.Cells) -> columns.Columns:
    """Rows whose group is all that they say, under keys of any name."""
    named = [f"{entry}/{two}" for entry, two in zip(rows.cells("a.b é"), rows.cells(""), strict=True)]
    return columns.Columns(step=rows.steps("absent") + 1, group=named, prompts=lambda _: [], numbers={})


def test_rows_have_the_keys_that_are_declared_under_any_name() -> None:
    text = b'{"a.b \\u00e9": "x", "z": 1}\n{"": [1, {}]}\n'
    assert read(columns.line_columns(by_key, ["a.b é"], [""]), text).group == ["x/None", "None/[1, {}]"]
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        read(columns.line_columns(by_key, ["a.b é"], [""], is_complete=True), text)


@pytest.mark.parametrize(("key", "is_plain"), [("a", True), ("é", True), *((key, False) for key in '"\\\n\ud800')])
def test_keys_that_a_decoder_can_be_given(key: str, is_plain: bool) -> None:
    assert (columns.line_columns(by_key, [key]) is not None) == is_plain


CELLS = [
    {"r": 1, "s": 2, "n": "a", "p": "2+2?"},
    {"r": None, "n": 7, "p": None},
    {"r": 0.5, "s": 3, "n": None, "p": ""},
]


@pytest.mark.parametrize("kind", ["decoder", "rows", "arrow"])
def test_cells_mean_the_same_whoever_made_the_rows(kind: str) -> None:
    seen: list[columns.Cells] = []
    names = {name: [row.get(name) for row in CELLS] for name in ("r", "s", "p")}
    names["n"] = ["a", "7", None]
    if kind == "decoder":
        lines = columns.line_columns(lambda rows: seen.append(rows) or by_key(rows), ["r", "s", "n"], ["p"])
        read(lines, "\n".join(map(json.dumps, CELLS)).encode())
    elif kind == "rows":
        seen.append(columns.Cells.of_rows(CELLS, Path("a.jsonl")))
    else:
        seen.append(columns.Cells.of_batch(pa.RecordBatch.from_pydict(names), Path("a.parquet")))
    (rows,) = seen
    assert len(rows) == 3
    np.testing.assert_array_equal(rows.numbers("r"), [1.0, math.nan, 0.5])
    assert rows.steps("s").tolist() == [2, -1, 3]
    assert columns.texts_in(rows.names("n")) == ["a", "7", ""]
    assert columns.texts_in(rows.prompt_ids("p")) == [digest("2+2?"), "", ""]
    assert rows.cells("p", [0, 1]) == ["2+2?", None]
    assert rows.cells("absent") == rows.cells(None) == [None] * 3
    assert columns.texts_in(rows.names("p"), [2, 0]) == ["", "2+2?"]


@pytest.mark.parametrize("more", [[], [UNSET], ["\ud800"]])
def test_prompts_that_json_tells_apart_are_apart(more: list[Any]) -> None:
    asked = [[{"role": "user", "content": "2+2?", "n": number}] for number in (1, True, 1.0, 1, None)]
    cells = [*asked, "2+2?", "", None, 1, True, *more]
    ids = columns.Cells(Path("a.jsonl"), len(cells), ("p",), lambda _: cells).prompt_ids("p")
    assert ids == ["" if cell in (None, "", UNSET) else prompt_text_id(cell) for cell in cells]
    assert len(set(ids[:5])) == 4


def test_entries_of_objects_are_columns_and_a_row_without_the_object_lacks_them() -> None:
    read = [{"o": {"r": 1, "p": "a", "q": {"t": 5}}, "s": 2}, {"s": 3, "o.r": 4}, {"o": [1]}]
    rows = columns.Cells.of_rows(read, Path("a.jsonl")).with_entries(["o.r", "o.p", "o.q.t"])
    assert rows.column("o.q.t") == [5, UNSET, UNSET]
    assert (rows.column("o.r"), rows.cells("o.p"), rows.column("s")) == (
        [1, UNSET, UNSET],
        ["a", None, None],
        [2, 3, UNSET],
    )


def test_rows_hold_several_rollouts_one_or_none() -> None:
    def to_columns(lines: columns.Cells) -> columns.Columns:
        sizes = [len(cell) if type(cell) is list else 0 for cell in lines.column("r")]
        rows = lines.elements(sizes)
        return columns.Columns(
            row=np.repeat(np.arange(len(sizes)), sizes),
            flaws=[(index, "r is no list") for index, cell in enumerate(lines.column("r")) if type(cell) is not list],
            step=np.zeros(len(rows), dtype=np.int64),
            group=rows.names("g"),
            no_group="g is missing",
            prompts=lambda chosen: [str(index) for index in chosen],
            numbers={"reward": rows.numbers("r")},
            notes=["seen"],
            details=lambda _: {"completion": ""},
        )

    lines = [{"r": [1, 0], "g": ["a", "b"]}, {"r": []}, {"r": 3}, {"r": [None], "g": ["a"]}, {"r": [1, 1], "g": ["a"]}]
    quarantine, notes = QuarantineLog(), list[str]()
    named = [(f"a:{number}", line) for number, line in enumerate(lines, start=1)]
    records = list(columns.records_in(to_columns, Path("a"), named, quarantine, notes.append))
    assert [(row, record.group, record.reward) for row, record in records] == [(0, "a", 1), (0, "b", 0), (3, "a", None)]
    reasons = {entry.reason: (entry.num_rows, entry.num_rollouts, entry.first) for entry in quarantine.result().reasons}
    assert reasons == {
        "g is missing": (2, 2, "a:5"),
        "r is no list": (1, 2, "a:3"),
        "the reward is missing": (1, 1, "a:4"),
    }
    assert notes == ["seen"]


def test_text_is_a_number_where_all_cells_are_text() -> None:
    table = {"r": ["1", " TRUE ", "", "x"]}
    batch = columns.Cells.of_batch(pa.RecordBatch.from_pydict(table), Path("a.csv"))
    rows = columns.Cells.of_rows([{"r": cell} for cell in table["r"]], Path("a.csv"))
    for cells in (batch, rows):
        np.testing.assert_array_equal(cells.numbers("r"), [1.0, 1.0, math.nan, math.nan])
    assert [rows.no_reward("r", index) for index in (2, 3)] == ["the reward is null", "the reward is text"]
    assert batch.not_finite("r") is None
    floats = pa.RecordBatch.from_pydict({"a": [1.0, None, math.inf]})
    broken = columns.Cells.of_batch(floats, Path("a.parquet")).not_finite("a")
    assert broken is not None
    assert broken.tolist() == [False, False, True]


def test_rows_become_records_and_what_is_none_is_set_aside() -> None:
    def to_columns(rows: columns.Cells) -> columns.Columns:
        def further(index: int) -> dict[str, Any]:
            if rows.cell("tokens", index) == "x":
                raise UnusableRowError("the tokens are text")
            return {"completion": rows.cell("text", index)}

        return columns.Columns(
            step=rows.steps("step"),
            group=rows.names("group"),
            no_group="the group is missing",
            prompts=lambda numbers: [f"p{index}" for index in numbers],
            numbers={"reward": rows.numbers("reward"), "reward/a": rows.numbers("a"), "advantage": rows.numbers("adv")},
            no_reward=partial(rows.no_reward, "reward"),
            noted={"Late.": rows.steps("step") > 1},
            samples=[f"s{index}" for index in range(len(rows))],
            details=further,
            flaw=lambda index: "odd" if rows.cell("adv", index) == 9 else None,
        )

    usual = {"step": 1, "group": "g", "reward": 1, "a": 0.5, "adv": -1, "text": "t"}
    odd = [{"step": None}, {"group": ""}, {"tokens": "x", "step": 3}, {"reward": "1"}, {"adv": 9, "step": 2}]
    quarantine, noted = QuarantineLog(), list[str]()
    rows = [(f"a:{index + 1}", usual | cells) for index, cells in enumerate([{}, *odd])]
    located = list(columns.records_in(to_columns, Path("a"), rows, quarantine, noted.append))
    assert [index for index, _ in located] == [0, 4, 5]
    assert located[0][1] == Record(
        step=1,
        group="g",
        prompt_id="p0",
        prompt="",
        completion="t",
        reward=1.0,
        rewards={"a": 0.5},
        advantage=-1.0,
        sample_id="s0",
        location="a:1",
    )
    assert [record.reward for _, record in located] == [1.0, None, 1.0]
    assert noted == ["Late."]
    assert {(reason.reason, reason.first) for reason in quarantine.result().reasons} == {
        ("the step is not a whole number", "a:2"),
        ("the group is missing", "a:3"),
        ("the tokens are text", "a:4"),
        ("the reward is text", "a:5"),
        ("odd", "a:6"),
    }

"""A broken row of CSV costs itself, and rows after it are where they were."""

import bz2
import csv
import gc
import gzip
import io
import json
import lzma
import math
import os
import random
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.results.source import first_duplicate
from gradscope.rollouts.listing import COMPRESSED
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from tests.rollouts.readers.lines import refused, set_aside

HEAD = "step,completion,reward\n"


def read(tmp_path: Path, text: str | bytes) -> tuple[list[tuple[int, list[str]]], list[tuple[str, int]]]:
    """Rows with their lines, and reasons with their counts."""
    file = tmp_path / "a.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    quarantine = QuarantineLog()
    rows = [
        (int(location.rpartition(":")[2]), list(cells.values()))
        for location, cells in tables.read_csv(file, quarantine)
    ]
    return rows, [(reason.reason, reason.num_rows) for reason in quarantine.result().reasons]


def test_a_file_whose_first_rows_were_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEAD + "1,a,0\n" * 9)
    gc.disable()
    try:
        assert len(list(islice(tables.read_csv(tmp_path / "a.csv", QuarantineLog()), 2))) == 2
        assert not any("a.csv" in os.path.realpath(f"/dev/fd/{descriptor}") for descriptor in range(64))
    finally:
        gc.enable()


@pytest.mark.parametrize("length", [10, 1_000_000])  # one beyond the buffer that most files are read with
def test_lines_of_any_length_are_read_whole(tmp_path: Path, length: int) -> None:
    rows = [{"step": step, "completion": "a" * length} for step in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [cells for _, cells in tables.read_jsonl(tmp_path / "a.jsonl", QuarantineLog())] == rows


def test_an_unclosed_quote_costs_its_row(tmp_path: Path) -> None:
    lines = [f'1,"c {index}",0\n' for index in range(400)]
    lines[7] = '1,"never closed,0\n'
    rows, reasons = read(tmp_path, HEAD + "".join(lines))
    assert reasons == [("the row is not CSV: a quote is not closed, or text follows one", 1)]
    assert [number for number, _ in rows] == [number for number in range(2, 402) if number != 9]
    assert rows[7] == (10, ["1", "c 8", "0"])


def test_an_unclosed_quote_with_none_after_it_costs_its_row(tmp_path: Path) -> None:
    rows, reasons = read(tmp_path, HEAD + '1,"open,0\n' + "1,plain,1\n" * 50)
    assert reasons == [("the row is not CSV: a quote is not closed", 1)]
    assert len(rows) == 50


def test_cells_of_several_lines_are_read_at_their_first(tmp_path: Path) -> None:
    rows, reasons = read(tmp_path, HEAD + '1,"two\nlines, ""quoted""",0\r\n2,x,1')
    assert rows == [(2, ["1", 'two\nlines, "quoted"', "0"]), (4, ["2", "x", "1"])]
    assert reasons == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,2\n", "the row has more or fewer cells than the header"),
        ("\n", "the line is blank"),
        (",,\n", "the line is blank"),
        ('1,"a"b,0\n', "the row is not CSV: a quote is not closed, or text follows one"),
        ("1,a\rb,0\n", "the row is not CSV: a carriage return stands in it"),
    ],
)
def test_what_is_no_row_is_set_aside(tmp_path: Path, line: str, reason: str) -> None:
    rows, reasons = read(tmp_path, f"{HEAD}1,a,0\n{line}1,b,1\n")
    assert [cells[1] for _, cells in rows] == ["a", "b"]
    assert reasons == [(reason, 1)]


def test_bytes_and_marks(tmp_path: Path) -> None:
    rows, reasons = read(tmp_path, b"\xef\xbb\xbfstep,completion\n1,\xff\n2,\xc3\xbc\n")
    assert rows == [(3, ["2", "ü"])]
    assert reasons == [("the line is not UTF-8", 1)]


def test_two_columns_of_one_name_mean_nothing(tmp_path: Path) -> None:
    rows, reasons = read(tmp_path, "step,reward,reward\n1,0,1\n1,1,1\n")
    assert rows == []
    assert reasons == [("two columns have the name 'reward'", 2)]
    rows, reasons = read(tmp_path, ",reward,,\n0,1,,\n")
    assert (rows, reasons) == ([(2, ["0", "1", "", ""])], [])
    assert first_duplicate(["a", "b", "a"]) == "a"
    assert first_duplicate(["a", "b"]) is None


def test_a_row_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROW", 1 << 20)
    long = '1,"' + ("x" * 1000 + "\n") * 1100 + '",0\n'
    rows, reasons = read(tmp_path, HEAD + "1,a,0\n" + long)
    assert rows == [(2, ["1", "a", "0"])]
    assert ("the row is not CSV: it is longer than 1 MiB", 1) in reasons


def test_lines_are_not_read_again_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROW", 1 << 14)
    file = tmp_path / "a.csv"
    file.write_text(HEAD + '1,"open\n' * 3 + "1,x,0\n" * 4000)
    refused("so many quotes that are not closed", list, tables.read_csv(file, QuarantineLog()))


def test_every_sound_table_is_read_as_the_library_does(tmp_path: Path) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        table = [["".join(draw.choices('a,"\n é', k=draw.randrange(6))) + "." for _ in "abc"] for _ in range(20)]
        text = io.StringIO()
        csv.writer(text, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerows([["x", "y", "z"], *table])
        rows, reasons = read(tmp_path, text.getvalue())
        assert ([cells for _, cells in rows], reasons) == (table, []), seed


def test_one_damaged_line_of_many_costs_a_few_rows_at_most(tmp_path: Path) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        lines = [f'{index},"c, {index}",{index % 2}\n' for index in range(100)]
        damaged = draw.randrange(100)
        cut = draw.randrange(1, len(lines[damaged]) - 1)
        lines[damaged] = lines[damaged][:cut] + draw.choice(['"', '""', "x", ","]) + lines[damaged][cut:]
        rows, reasons = read(tmp_path, HEAD + "".join(lines))
        assert len(rows) + sum(count for _, count in reasons) == 100, seed
        assert len(rows) >= 98, seed


def rows(path: Path) -> tuple[list[dict[str, object]], dict[str, str]]:
    quarantine = QuarantineLog()
    cells = [row for _, row in tables.read_rows(path, quarantine)]
    return cells, {reason.reason: reason.first.rpartition(":")[2] for reason in quarantine.result().reasons}


def test_a_csv_may_hold_long_cells_and_line_ends_and_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "x" * 200_000
    path.write_bytes(f'a,b\n"1\n2",{long}\n\n3\n4,'.encode() + b"\xff\n")
    cells, set_aside = rows(path)
    assert cells == [{"a": "1\n2", "b": long}]
    assert set_aside == {
        "the line is blank": "4",
        "the row has more or fewer cells than the header": "5",
        "the line is not UTF-8": "6",
    }


def test_a_csv_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    assert rows(path) == ([], {})


def test_a_json_document_is_a_list_or_an_object_or_json_lines_after_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, expected in (
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('{"a":\n 1}', [{"a": 1}]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
    ):
        path.write_text(content)
        assert rows(path) == (expected, {})
    path.write_text('[{"a": 1}, 2]')
    assert rows(path) == ([{"a": 1}], {"the element is not a JSON object": "2"})
    path.write_bytes(b'[{"a": 1}, {"a": "\xff"}, {"a": %s1%s},\n{"a": 2}]' % (b"[" * 101, b"]" * 101))
    flaws = {"the element is not UTF-8": "2", "the element is nested deeper than 100 levels": "3"}
    assert rows(path) == ([{"a": 1}, {"a": 2}], flaws)
    path.write_text('{"rows": [{"a": 1}, "a line of text"]}')
    assert rows(path) == ([{"a": 1}], {"the element is not a JSON object": "2"})
    path.write_text('[{"a": 1}, {"a": NaN}, {"a": 2}]')
    assert [str(row) for row in rows(path)[0]] == ["{'a': 1}", "{'a': nan}", "{'a': 2}"]


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10.jsonl", "10.jsonl.xz", "9.jsonl.gz", "notes.txt", "b_2.csv"):
        (tmp_path / name).touch()
    (tmp_path / "below.jsonl").mkdir()
    assert [file.name for file in tables.expand(tmp_path)] == ["b_2.csv", "9.jsonl.gz", "10.jsonl"]
    assert [file.name for file in tables.expand(tmp_path / "1*")] == ["10.jsonl"]
    assert tables.expand(tmp_path / "notes.txt") == (tmp_path / "notes.txt",)
    assert tables.expand(tmp_path / "gone") == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a": 1}\n', {"a": 1}),
        (b'{"a": "\xc3\xa9"}', {"a": "é"}),
        (b'{"reward": -Infinity}\n', {"reward": -math.inf}),  # so that the reward is judged, and not the line
        (b" \r\n", "the line is blank"),
        (b'{"a": "\xe9"}\n', "the line is not UTF-8"),
        (b'{"a": \n', "the line is not JSON"),
        (b'{"a": {}},\n', {"a": {}}),  # of a list that was cut into lines
        (b'{"a": 1}, \r\n', {"a": 1}),
        (b'{"a": 1},,\n', "the line is not JSON"),
        (b'{"a": ', "the last line is cut off"),
        (b"[1]\n", "the line is not a JSON object"),
        (b'[{"step": 1}, 2]\n', "the line is not a JSON object"),
        (b'[{"step": 1}, {}]\n', {"rollouts": [{"step": 1}, {}]}),
        (b'{"a": ' + b"[" * 100_000 + b"\n", "the line is nested deeper than 100 levels"),
    ],
)
def test_a_line_is_an_object_or_says_why_not(line: bytes, expected: object) -> None:
    assert tables.parse_line(line) == expected


def test_line_numbers_count_all_lines_and_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}')
    quarantine = QuarantineLog()
    assert list(tables.read_jsonl(path, quarantine)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": 2})]
    assert quarantine.result().reasons[0].first == f"{path}:2"


_HUNDRED = b'{"a": 1}\n' * 100
_zstd = partial(pa.compress, codec="zstd", asbytes=True)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".gz", gzip.compress(_HUNDRED, mtime=0)[:-10]),
        (".xz", lzma.compress(_HUNDRED)[:-10]),
        (".bz2", bz2.compress(_HUNDRED)[:-10]),
        *((suffix, b"not compressed") for suffix in COMPRESSED),
    ],
)
def test_broken_compression_is_set_aside_and_names_the_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(content)
    quarantine = QuarantineLog()
    list(tables.read_jsonl(path, quarantine))
    assert str(path) in quarantine.result().lost[0]
    refused(rf"a\.jsonl{suffix} cannot be read", quarantine.raise_unreadable)


def test_a_python_without_a_module_for_a_compression_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(_HUNDRED))
    monkeypatch.setitem(sys.modules, "lzma", None)
    refused(r"a\.jsonl\.xz cannot be read: this Python was built without lzma\.", tables.open_bytes, path)


@pytest.mark.parametrize("suffix", ["", *COMPRESSED])
def test_some_bytes_of_a_file_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(tables, "_PASSED_AT_ONCE", 2)
    path = tmp_path / f"a.jsonl{suffix}"
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": _zstd}[suffix]
    path.write_bytes(compress(b"0123456789"))
    spans = [tables.read_span(path, start, end) for start, end in ((0, 3), (5, 8), (8, 20), (12, 14))]
    assert spans == [b"012", b"567", b"89", b""]


def test_a_file_without_rows_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_FLAWED", 3)
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n\n{}\n\n\n\n{}\n\n\n\n\n{}\n")
    quarantine = QuarantineLog()
    assert [location.rpartition(":")[2] for location, _ in tables.read_jsonl(path, quarantine)] == ["4", "8"]
    assert quarantine.result().lost == (f"{path} has no row in 3 lines from line 9 on.",)


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (b'[{"a": 1}, 2]', [b'{"a": 1}', b"2"]),
        (b'{"a": 1}\n', [b'{"a": 1}']),
        (b'{"rollouts": [{"a": 1}], "lr": 0.1}', [b'{"a": 1}']),
        (b'{"step": 3, "data": [{"a": 1}, {"step": 4}]}', [b'{"step":3,"a": 1}', b'{"step":3,"step": 4}']),
        (b'{"iteration": "step_3", "rows": [{"a": 1}]}', [b'{"iteration":"step_3","a": 1}']),
        (b'{"step": null, "global_step": [3], "rows": [{"a": 1}]}', [b'{"a": 1}']),
        (b'{"data": [], "rows": [1]}', [b'{"data": [], "rows": [1]}']),
        (b'{"data": {"a": 1}}', [b'{"data": {"a": 1}}']),
    ],
)
def test_rows_of_a_document_are_those_of_its_one_list(document: bytes, rows: list[bytes], tmp_path: Path) -> None:
    undecoded = [bytes(row) for row in tables.undecoded_rows(document)]
    assert undecoded == rows
    (tmp_path / "log.json").write_bytes(document)
    decoded = [row for _, row in tables.read_json_rows(tmp_path / "log.json", QuarantineLog())]
    assert decoded == [row for row in map(json.loads, undecoded) if isinstance(row, dict)]


@pytest.mark.parametrize(("indent", "number"), [(None, math.nan), (1, math.inf)])
@pytest.mark.parametrize("layout", ["list", "rollouts", "steps", "samples", "prompts"])
def test_a_number_that_is_not_finite_costs_its_rollout_and_no_more_of_a_document(
    layout: str, indent: int | None, number: float, tmp_path: Path
) -> None:
    samples = [{"completion": "a", "reward": number, "kl": number}, {"completion": "b", "reward": 0.5}]
    rows = [{"prompt": "What is 1 + 1?", **sample} for sample in samples]
    rows += [{"prompt": "And 2 + 2?", **samples[1]} for _ in range(2)]
    documents: dict[str, Any] = {
        "list": [{"step": 3, **row} for row in rows],
        "rollouts": {"step": 3, "loss": number, "rollouts": rows},
        "steps": {"lr": number, "steps": [{"step": 3, "loss": number, "rollouts": rows}]},
        "samples": [{"question": "What is 1 + 1?", "samples": samples}, {"question": "?", "samples": [samples[1]] * 2}],
        "prompts": {"mean": number, "results": {"What is 1 + 1?": samples, "And 2 + 2?": [samples[1]] * 2}},
    }
    (tmp_path / "log.json").write_text(json.dumps(documents[layout], indent=indent))
    for rewards_only in (True, False):
        run = read_run(tmp_path / "log.json", rewards_only=rewards_only)
        assert [group.rewards for group in run.groups] == [(None, 0.5), (0.5, 0.5)]
        assert set_aside(run) == {"the reward is not finite": 1}


@pytest.mark.parametrize("layout", ["history", "by step", "columns"])
def test_a_metric_that_is_not_finite_is_so_at_its_step_alone(layout: str, tmp_path: Path) -> None:
    losses = [0.1 * step if step != 3 else math.nan for step in range(20)]
    rows = [{"step": step, "loss": loss, "reward": 0.5} for step, loss in enumerate(losses)]
    documents: dict[str, Any] = {
        "history": {"best_metric": math.nan, "log_history": rows},
        "by step": {str(row["step"]): row for row in rows},
        "columns": {name: [row[name] for row in rows] for name in rows[0]},
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(documents[layout], indent=1))
    metrics = read_run(tmp_path / "trainer_state.json", metrics_alone=True).metrics
    assert [step for step, values in metrics.items() if not math.isfinite(values["loss"])] == [3]
    assert len(metrics) == 20


def test_a_link_to_itself_is_no_file_of_a_folder(tmp_path: Path) -> None:
    read(tmp_path, "step,completion,reward\n1,a,1\n")
    (tmp_path / "b.csv").symlink_to("b.csv")
    (tmp_path / "c.csv").symlink_to("a.csv")
    assert tables.expand(tmp_path) == (tmp_path / "a.csv", tmp_path / "c.csv")

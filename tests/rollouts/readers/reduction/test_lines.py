"""Blocks of lines: what the decoder takes at once, and what is left for the row reader."""

import gzip
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.parsing.tables import parse_line
from gradscope.rollouts.readers.reduction import lines
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, line_columns
from gradscope.rollouts.readers.reduction.lines import Scanned, blocks_in, scan_range


def to_columns(rows: Cells) -> Columns:
    return Columns(
        step=rows.steps("step"),
        group=rows.names("g"),
        prompts=lambda numbers: [f"{rows.path.stem}/{index}" for index in numbers],
        numbers={"reward": rows.numbers("r")},
    )


COLUMNS = line_columns(to_columns, ("step", "g", "r"))
assert COLUMNS is not None
LINE = b'{"step": 1, "g": "a", "r": 0.5, "x": 0}\n'


def scanned(path: Path, content: bytes, start: int = 0, end: int | None = None) -> list[Scanned]:
    path.write_bytes(content)
    assert COLUMNS is not None
    return list(scan_range(path, 3, COLUMNS, start, end))


def odd(scans: Sequence[Scanned]) -> list[tuple[int, Any, int]]:
    return [(row.index, row.row, row.count) for block in scans for row in block.irregular]


def test_lines_behind_a_long_one_end_where_they_end(tmp_path: Path) -> None:
    long = LINE.replace(b'"x": 0', b'"x": "' + 2000 * b"y" + b'"')
    content = long + LINE + b"{\n" + long
    (block,) = scanned(tmp_path / "a.jsonl", content)
    assert block.part is not None
    assert (block.num_rows, block.part.size.tolist(), [row.index for row in block.irregular]) == (4, [3], [2])
    assert [(span.start, span.end) for span in block.spans or ()] == [(0, len(content))]
    assert [(row.start, row.end) for row in block.irregular] == [(len(long + LINE), len(long + LINE) + 2)]


def test_usual_lines_are_groups_with_their_prompts_and_where_they_lie(tmp_path: Path) -> None:
    other = LINE.replace(b'"step": 1', b'"step": 2').replace(b'"a"', b'"b"')
    (scan,) = scanned(tmp_path / "a.jsonl", LINE + LINE + other + LINE)
    assert scan.part is not None
    assert (scan.part.step.tolist(), scan.part.group.to_pylist(), scan.part.size.tolist()) == (
        [1, 2],
        ["a", "b"],
        [3, 1],
    )
    assert (scan.part.prompt.to_pylist(), scan.part.first_row.tolist()) == (["a/0", "a/2"], [0, 2])
    assert (scan.file, scan.num_rows, scan.end, scan.irregular, scan.row_numbers) == (3, 4, 4 * len(LINE), [], None)
    size = len(LINE)
    assert [(span.step, span.start, span.end, span.line) for span in scan.spans or ()] == [
        (1, 0, 4 * size, 0),
        (2, 2 * size, 3 * size, 2),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"\n",
        b"{\n",
        b"[1]\n",
        LINE[:-1] + LINE,
        b" " + LINE,
        LINE.replace(b"0.5", b'"x"'),
        LINE.replace(b"0.5", b"1e999"),
        LINE.replace(b'"a"', b'""'),
        LINE.replace(b'"step": 1', b'"step": -1'),
        LINE.replace(b'"x": 0', b'"x": ' + b"[" * 101 + b"]" * 101),
        LINE.replace(b'"x": 0', b'"x": ' + b"9" * 4301),
        LINE.replace(b'"x": 0', b'"x": "\xff"'),
        LINE.replace(b'"x": 0', b'"x": "\\ud800"'),
        LINE.replace(b'"x": 0', b'"x": nan'),
        LINE.replace(b'"x"', b'""'),
        LINE.replace(b'"x": 0', b'"x": "' + "é".encode() * 5000 + b'"'),
        LINE[:-1] + b"\r\n",
    ],
)
def test_an_odd_line_is_what_the_row_reader_makes_of_it(tmp_path: Path, bad: bytes) -> None:
    (scan,) = scanned(tmp_path / "a.jsonl", LINE * 9 + bad + LINE * 9)
    assert scan.part is not None
    row = parse_line(bad)
    is_usual = isinstance(row, dict) and not scan.irregular
    assert odd([scan]) == ([] if is_usual else [(9, row, 1)])
    assert int(scan.part.size.sum()) == 18 + is_usual


@pytest.mark.parametrize(
    ("old", "new", "is_usual"),
    [
        (b'"x": 0', b'"x": NaN', True),
        (b'"x": 0', b'"x": [-Infinity, {"y": Infinity}]', True),
        (b'"x": 0', rb'"x": "\\\" NaN", "y": NaN', True),
        (b'"a"', b'"NaN, Infinity"', True),
        (b"0.5", b"NaN", False),
        (b'"a"', b"Infinity", False),
        (b'"x": 0', b'"x": NaNN', False),
        (b'"x": 0', b'"x": --Infinity', False),
    ],
)
def test_only_numbers_that_are_none_and_not_read_are_usual(
    tmp_path: Path, old: bytes, new: bytes, is_usual: bool
) -> None:
    line = LINE.replace(old, new)
    (scan,) = scanned(tmp_path / "a.jsonl", LINE + line * 3 + LINE.replace(b'"a"', b'"NaN"'))
    assert scan.part is not None
    assert set(scan.part.group.to_pylist()) == {"a", "NaN"} | ({"NaN, Infinity"} if b'"NaN, ' in line else set())
    assert sum(row.count for row in scan.irregular) == (0 if is_usual else 3)
    assert all(row.row == parse_line(line) for row in scan.irregular)


def test_a_field_in_which_nan_says_nothing_has_none(tmp_path: Path) -> None:
    columns = line_columns(lambda rows: Columns(), ("x", "r"), may_be_nan=("x",))  # type: ignore[call-arg]
    assert columns is not None
    cells = [b"NaN", b"[NaN]", b'{"y": -Infinity, "z": {"w": NaN}, "v": 1}', b"0"]
    data = b"".join(b'{"r": 1, "x": %b, "other": NaN}\n' % cell for cell in cells) + b'{"r": NaN}\n'
    block = lines.LineBlock(data=data, offset=0, end=len(data))
    rows, index, _ = block.decoded(columns.decoder, columns.may_be_nan)
    assert [getattr(row, columns.may_be_nan[0]) for row in rows] == [None, {"y": None, "z": {"w": None}, "v": 1}, 0]
    assert index.tolist() == [0, 2, 3]


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize(
    ("value", "is_usual"),
    [
        (b'"\\"' + b"{[" * 99 + b'"', True),
        (b'["' + b"[" * 200 + b'", {"a": [' + b"[], " * 200 + b"[]]}]", True),
        (b"[[]," * 98 + b"1" + b"]" * 98, True),
        (b"[[]," * 99 + b"1" + b"]" * 99, False),
        (b"[1, " * 100 + b"1" + b" ]" * 100, False),
        (b"[ [] ,\t" * 100 + b"1" + b"]" * 100, False),
        (b"[" * 99 + b'"]"' + b"]" * 99, True),
        (b"[" * 100 + b'"]"' + b"]" * 100, False),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, False),
        (b'"' + b"[" * 200 + b'", "y": ' + b"[" * 100 + b"]" * 100, False),
    ],
)
def test_brackets_count_where_they_nest(tmp_path: Path, value: bytes, is_usual: bool, times: int) -> None:
    bad = LINE.replace(b'"x": 0', b'"x": ' + value)
    (scan,) = scanned(tmp_path / "a.jsonl", bad * times + b"\n" + LINE * 9)
    assert isinstance(parse_line(bad), dict) is is_usual
    assert sum(row.count for row in scan.irregular) == 1 + (0 if is_usual else times)


def test_lines_without_a_row_for_one_reason_are_told_together(tmp_path: Path) -> None:
    scans = scanned(tmp_path / "a.jsonl", b"\n" * 3 + LINE + b"{\n\n" + b"\n")
    assert odd(scans) == [(0, "the line is blank", 3), (4, "the line is not JSON", 1), (5, "the line is blank", 2)]


def test_a_file_is_given_up_where_no_row_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_FLAWED", 5)
    assert odd(scanned(tmp_path / "a.jsonl", LINE + b"\n" * 100)) == [(1, "the line is blank", 6)]


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("block", [30, 50, 1 << 20])
def test_ranges_have_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, block: int) -> None:
    monkeypatch.setattr(lines, "BLOCK", block)
    content = start + b"".join(LINE.replace(b"0.5", b"%d" % index) for index in range(20)) + LINE[:-1]
    for size in (7, 39, 40, 41, 100, 10_000):
        cuts = [*range(0, len(content), size), None]
        scans = [entry for low, high in pairwise(cuts) for entry in scanned(tmp_path / "a", content, low or 0, high)]
        rewards = np.concatenate([entry.part.columns["reward"] for entry in scans if entry.part is not None])
        assert rewards.tolist() == [*range(20), 0.5]
        assert [entry.is_open for entry in scans] == [False] * (len(scans) - 1) + [True]
        assert (sum(entry.num_rows for entry in scans), scans[-1].end) == (21, len(content))


def test_a_last_line_that_is_cut_off_is_odd(tmp_path: Path) -> None:
    *_, last = scanned(tmp_path / "a.jsonl", LINE + LINE[:20])
    assert last.is_open
    assert odd([last]) == [(0, "the last line is cut off", 1)]


def test_a_line_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tables, lines):
        monkeypatch.setattr(module, "MAX_ROW", 1 << 20)
    monkeypatch.setattr(lines, "BLOCK", 1 << 18)
    long = LINE[:-2] + b', "y": "' + b"x" * (3 << 20) + b'"}\n'
    scans = scanned(tmp_path / "a.jsonl", LINE + long + LINE)
    assert odd(scans) == [(0, "the line is longer than 1 MiB", 1)]
    assert sum(int(scan.part.size.sum()) for scan in scans if scan.part is not None) == 2
    assert sum(scan.num_rows for scan in scans) == 3


def test_a_compressed_file_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    scans = scanned(path, gzip.compress(LINE * 10))
    assert [(scan.num_rows, scan.end) for scan in scans] == [(10, 10 * len(LINE))]
    path.write_bytes(gzip.compress(LINE * 1000)[:-10])
    *_, last = blocks_in(path)
    assert last.lost is not None
    assert "a.jsonl.gz cannot be read" in last.lost.message


def test_long_numbers_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(20):
        before = LINE.replace(b'"x": 0', b'"x": "' + b"7, " * draw.randrange(3000) + b'"')
        bad = LINE.replace(b'"x": 0', b'"x": ' + b"9" * 4301)
        scans = scanned(tmp_path / "a.jsonl", before + bad + LINE)
        assert odd(scans) == [(1, "the line has a number of more than 4300 digits", 1)]

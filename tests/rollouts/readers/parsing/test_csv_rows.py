"""A broken row of CSV costs itself, and rows after it are where they were."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.results.source import twice_in
from gradscope.rollouts.readers.parsing import csv_rows
from gradscope.rollouts.readers.parsing.csv_rows import read_csv
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog

HEAD = "step,completion,reward\n"


def read(tmp_path: Path, text: str | bytes) -> tuple[list[tuple[int, list[str]]], list[tuple[str, int]]]:
    """Rows with their lines, and reasons with their counts."""
    file = tmp_path / "a.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    quarantine = QuarantineLog()
    rows = [(int(place.rpartition(":")[2]), list(cells.values())) for place, cells in read_csv(file, quarantine)]
    return rows, [(one.reason, one.num_rows) for one in quarantine.result().reasons]


def test_an_unclosed_quote_costs_its_row(tmp_path: Path) -> None:
    lines = [f'1,"c {at}",0\n' for at in range(400)]
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
    assert twice_in(["a", "b", "a"]) == "a"
    assert twice_in(["a", "b"]) is None


def test_a_row_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MOST_ROW", 1 << 20)
    long = '1,"' + ("x" * 1000 + "\n") * 1100 + '",0\n'
    rows, reasons = read(tmp_path, HEAD + "1,a,0\n" + long)
    assert rows == [(2, ["1", "a", "0"])]
    assert ("the row is not CSV: it is longer than 1 MiB", 1) in reasons


def test_lines_are_not_read_again_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MOST_ROW", 1 << 14)
    file = tmp_path / "a.csv"
    file.write_text(HEAD + '1,"open\n' * 3 + "1,x,0\n" * 4000)
    with pytest.raises(InputError, match="so many quotes that are not closed"):
        list(read_csv(file, QuarantineLog()))


def test_every_sound_table_is_read_as_the_library_does(tmp_path: Path) -> None:
    for seed in range(200):
        draw = random.Random(seed)
        table = [["".join(draw.choices('a,"\n é', k=draw.randrange(6))) + "." for _ in "abc"] for _ in range(20)]
        text = io.StringIO()
        csv.writer(text, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerows([["x", "y", "z"], *table])
        rows, reasons = read(tmp_path, text.getvalue())
        assert ([cells for _, cells in rows], reasons) == (table, []), seed


def test_one_damaged_line_of_many_costs_a_few_rows_at_most(tmp_path: Path) -> None:
    for seed in range(200):
        draw = random.Random(seed)
        lines = [f'{at},"c, {at}",{at % 2}\n' for at in range(100)]
        place = draw.randrange(100)
        cut = draw.randrange(1, len(lines[place]) - 1)
        lines[place] = lines[place][:cut] + draw.choice(['"', '""', "x", ","]) + lines[place][cut:]
        rows, reasons = read(tmp_path, HEAD + "".join(lines))
        assert len(rows) + sum(count for _, count in reasons) == 100, seed
        assert len(rows) >= 98, seed

"""Files scanned in one process or in several: the same blocks in the same order."""

import csv
import gzip
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import read_csv
from gradscope.rollouts.readers.reduction import lines, processes
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, TableColumns
from gradscope.rollouts.readers.reduction.lines import Scanned
from gradscope.rollouts.readers.reduction.processes import scan_files, scan_table
from tests.rollouts.readers.reduction.test_lines import COLUMNS as OF_LINES
from tests.rollouts.readers.reduction.test_lines import LINE

HEAD = "group,text,reward\n"


def to_columns(rows: Cells) -> Columns:
    """Rows whose reward is a number."""
    cells = list(map(str, rows.cells("reward")))
    rewards = [float(cell) if re.fullmatch(r"[0-9]+([.][0-9]+)?", cell) else None for cell in cells]
    return Columns(
        step=np.zeros(len(rows), dtype=np.int64),
        group=rows.cells("group"),
        prompts=lambda numbers: [str(index) for index in numbers],
        numbers={"reward": np.array(rewards, dtype=np.float64)},
    )


COLUMNS = TableColumns(names=("group", "reward"), to_columns=to_columns)


def scanned(path: Path, content: str | bytes) -> list[Scanned]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(scan_table(path, 0, COLUMNS))


def by_row(path: Path) -> tuple[dict[int, dict[str, str]], list[tuple[str, int, str]]]:
    quarantine = QuarantineLog()
    rows = {int(place.rpartition(":")[2]): row for place, row in read_csv(path, quarantine)}
    return rows, [
        (reason.reason, reason.num_rows, reason.first.rpartition(":")[2]) for reason in quarantine.result().reasons
    ]


def assert_as_by_row(path: Path, content: str | bytes) -> list[Scanned]:
    """Hold a scan to the row reader: the same rows count, with the same rewards, and the same are none."""
    scans = scanned(path, content)
    rows, reasons = by_row(path)
    quarantine = QuarantineLog()
    odd: dict[int, dict[str, str]] = {}
    num_usual, total, before = 0, 0.0, 0
    for scan in scans:
        for irregular_row in scan.irregular:
            if isinstance(irregular_row.row, str):
                quarantine.add(irregular_row.row, f"{path}:{before + irregular_row.index + 1}", irregular_row.count)
            else:
                odd[before + irregular_row.index + 1] = irregular_row.row
        if scan.part is not None:
            num_usual += int(scan.part.size.sum())
            total += float(scan.part.columns["reward"].sum())
            assert all(int(place) + before + 1 in rows for place in scan.part.first_row)
        before += scan.num_rows
    assert {place: row["reward"] for place, row in odd.items()} == {place: rows[place]["reward"] for place in odd}
    assert num_usual + len(odd) == len(rows)
    assert total == sum(float(row["reward"]) for place, row in rows.items() if place not in odd)
    result = quarantine.result().reasons
    assert [(reason.reason, reason.num_rows, reason.first.rpartition(":")[2]) for reason in result] == reasons
    return scans


def num_usual(scans: list[Scanned]) -> int:
    return sum(int(scan.part.size.sum()) for scan in scans if scan.part is not None)


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        (HEAD + "a,x,1\na,y,0\n", 2),
        (HEAD + "a,x,1\r\na,y,0\r\n", 2),
        (HEAD + "a,x,1\na,y,0", 2),
        ("\ufeff" + HEAD + 'a,"x\ny, ""z""",1\nb,"",0.5\n', 2),
        (HEAD + "a,x,1\na,x,none\na,x,\n", 1),
        (HEAD + "a,x,1\n,,\na,x,0\n", 2),
        (HEAD + "a,x,1\n\na,x,0\n", 2),
        (HEAD + "a,x,1\na,x\na,x,0\n", 0),
        (HEAD + 'a,x,1\na,"x"y,1\na,x,0\n', 0),
        (HEAD + 'a,x,1\na,5" pipe,1\na,x,0\n', 1),
        (HEAD + 'a,x,1\na,"open,1\na,x,0\n', 1),
        (HEAD + "a,x\ry,1\na,x,0\n", 0),
        ('"open\n' + HEAD + "a,x,1\n", 1),
        ("group,reward,reward\na,1,0\nb,1,1\n", 0),
        (HEAD, 0),
        ("", 0),
    ],
)
def test_csv_of_any_kind_is_read_as_the_row_reader_reads_it(tmp_path: Path, text: str, usual: int) -> None:
    assert num_usual(assert_as_by_row(tmp_path / "a.csv", text)) == usual
    if '"' not in text:
        assert num_usual(assert_as_by_row(tmp_path / "a.tsv", text.replace(",", "\t"))) == usual


def test_csv_whose_head_is_not_utf_8_is_read_by_row(tmp_path: Path) -> None:
    assert num_usual(assert_as_by_row(tmp_path / "a.csv", b"group,te\xe6xt,reward\na,x,1\na,y,0\n")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_a_damaged_csv_equals_the_row_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(processes, "BLOCK", block)
    total_usual = 0
    for seed in range(40):
        draw = random.Random(seed)
        text = io.StringIO()
        rows = [
            [draw.choice("ab"), "".join(draw.choices('a,"\n é', k=draw.randrange(6))), str(index % 2)]
            for index in range(30)
        ]
        csv.writer(text, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerows(
            [["group", "text", "reward"], *rows]
        )
        data = text.getvalue().encode()
        for _ in range(seed % 3):
            cut = draw.randrange(len(HEAD) + 8, len(data))
            put = draw.choice([b'"', b"\n", b"\r", b"\xff", b",", b"", b"x"])
            data = data[:cut] + put + data[cut + draw.randrange(2) :]
        total_usual += num_usual(assert_as_by_row(tmp_path / "a.csv", data))
    assert total_usual > 400


def test_a_compressed_table_that_is_cut_is_read_to_there(tmp_path: Path) -> None:
    scans = scanned(tmp_path / "a.csv.gz", gzip.compress(HEAD.encode() + b"a,x,1\n" * 99)[:-9])
    assert scans[-1].lost is not None
    assert "a.csv.gz cannot be read" in scans[-1].lost.message


def parquet(folder: Path, **cells: Any) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"group": ["a", "b", "a"], "text": ["x"] * 3, "reward": [1.0, 0.0, 2.0]} | cells), path)
    return path


def test_parquet_is_read_some_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = {
        "group": [f"g{index // 4}" for index in range(5000)],
        "reward": [index % 2 for index in range(5000)],
        "text": ["x"] * 5000,
    }
    pq.write_table(pa.table(rows), path, row_group_size=1500)
    scans = list(scan_table(path, 7, COLUMNS))
    assert [(scan.file, scan.num_rows) for scan in scans] == [(7, 1500)] * 3 + [(7, 500)]
    assert scans[-1].end == path.stat().st_size
    assert num_usual(scans) == 5000


def test_odd_rows_of_parquet_have_their_cells_and_their_numbers(tmp_path: Path) -> None:
    (scan,) = scan_table(parquet(tmp_path, reward=[1.0, None, 2.0]), 0, COLUMNS)
    assert [(row.index, row.row) for row in scan.irregular] == [(1, {"group": "b", "reward": None})]
    assert scan.row_numbers is not None
    assert scan.row_numbers.tolist() == [0, 2]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_what_rows_of_tables_call_for_is_told(tmp_path: Path, name: str) -> None:
    parquet(tmp_path)
    (tmp_path / "a.csv").write_text(HEAD + "a,x,1\n")
    columns = replace(COLUMNS, to_columns=lambda cells: replace(COLUMNS.to_columns(cells), notes=["seen"]))
    assert {sentence for entry in scan_table(tmp_path / name, 0, columns) for sentence in entry.noted} == {"seen"}


def test_two_columns_of_one_name_and_damage_are_told(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.append_column("reward", table["reward"]), path)
    (scan,) = scan_table(path, 0, COLUMNS)
    assert [(row.row, row.count) for row in scan.irregular] == [("two columns have the name 'reward'", 3)]
    path.write_bytes(b"PAR1")
    (scan,) = scan_table(path, 0, COLUMNS)
    assert scan.lost is not None
    assert "is not a readable Parquet file" in scan.lost.message


def write(folder: Path, *contents: bytes) -> list[Path]:
    files = [folder / f"{index}.jsonl" for index in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def blocks_of(files: list[Path], ends: dict[int, int] | None = None) -> list[tuple[int, int, int] | int]:
    scans = scan_files(files, lambda file: None if file.suffix == ".json" else OF_LINES, ends or {})
    return [(scan.file, scan.num_rows, scan.end) if isinstance(scan, Scanned) else scan for scan in scans]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MIN_FORKED", 0)
    monkeypatch.setattr(processes, "num_cores", lambda: 2)
    monkeypatch.setattr(processes, "RANGE", 150)


@pytest.mark.usefixtures("forked")
def test_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, LINE * 20, b"", LINE * 3 + b"{\n" + LINE, LINE[:-1])
    (tmp_path / "d.json").write_text("[]")
    files.insert(2, tmp_path / "d.json")
    scans = blocks_of(files)
    monkeypatch.setattr(processes, "_can_fork", lambda: False)
    assert scans == blocks_of(files)
    assert [scan if isinstance(scan, int) else scan[0] for scan in scans] == [0] * 6 + [2, 3, 4]
    assert sum(scan[1] for scan in scans if isinstance(scan, tuple)) == 26


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    size = len(LINE)
    files = write(tmp_path, LINE, LINE * 2, LINE)
    assert blocks_of(files, {0: size, 1: size}) == [(1, 1, 2 * size), (2, 1, size)]


@pytest.mark.usefixtures("forked")
def test_a_run_is_the_same_however_many_processes_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": index // 12, "group_id": f"g{index // 4}", "reward": index % 3 / 2} for index in range(60)]
    rows[7]["reward"] = rows[30]["step"] = None  # type: ignore[assignment]
    for number in range(3):
        text = "".join(f"{json.dumps(row)}\n" for row in rows[20 * number : 20 * number + 20]).encode()
        (tmp_path / f"{number}.jsonl").write_bytes(text)
    (tmp_path / "4.jsonl.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(lines, "BLOCK", 100)
    several = read_run(tmp_path, rewards_only=True)
    monkeypatch.setattr(processes, "MIN_FORKED", 1 << 60)
    alone = read_run(tmp_path, rewards_only=True)
    assert repr(several.groups[:]) == repr(alone.groups[:])
    assert several.source == alone.source
    assert [(reason.reason, reason.first.rpartition("/")[2]) for reason in alone.source.quarantined.reasons] == [
        ("the reward is null", "0.jsonl:8"),
        ("the step is not a whole number", "1.jsonl:11"),
    ]


@pytest.mark.usefixtures("forked")
def test_what_goes_wrong_in_a_process_is_raised(tmp_path: Path) -> None:
    files = write(tmp_path, LINE * 20)
    with pytest.raises(FileNotFoundError):
        list(scan_files(files, lambda file: file.unlink(missing_ok=True) or OF_LINES, {}))  # type: ignore[func-returns-value]


def test_a_large_cell_is_searched_through_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    source, sizes = processes._Source(io.BytesIO(HEAD.encode() + b"x" * 100_000), is_packed=False), list[int]()
    read = source.read
    monkeypatch.setattr(source, "read", lambda size: sizes.append(size) or read(size))
    assert processes._whole_rows(source, 100).decode() == HEAD
    assert len(processes._whole_rows(source, 100)) == 100_000
    assert len(sizes) < 20

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.groups import GroupsOnDisk
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import tables
from gradscope.rollouts.readers.reduction import log
from tests.rollouts.readers.lines import refused
from tests.rollouts.readers.reduced import assert_same_rollouts, in_small_blocks, read_by_row


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=300)


def rows(steps: Sequence[int]) -> list[dict[str, object]]:
    return [
        {"step": step, "group_id": f"g{i // 2}", "prompt_id": "p", "reward": float(i % 2), "completion": f"text {i}"}
        for i, step in enumerate(steps)
    ]


def lines(steps: Sequence[int]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows(steps))


IN_ORDER = [step for step in range(1, 9) for _ in range(6)]
MIXED = [1 + i % 8 for i in range(48)]


def is_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rollouts are read step by step, not all at once; they are held to those that are read row by row."""
    judged: list[bool] = []
    is_cheap = log.StepSpans.is_cheap
    monkeypatch.setattr(log.StepSpans, "is_cheap", lambda *a, **kw: judged.append(is_cheap(*a, **kw)) or judged[-1])
    run = read_run(path)
    by_row = read_by_row(path)
    assert_same_rollouts(run, by_row)
    assert run.groups[-1] == by_row.groups[-1]
    assert run.groups[1:3] == by_row.groups[1:3]
    assert isinstance(run.groups, GroupsOnDisk)
    return judged[0]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n{\n"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_steps_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, is_ended: bool) -> None:
    text = lines(IN_ORDER).encode()
    (tmp_path / "1.jsonl").write_bytes(start + (text if is_ended else text[:-1]))
    (tmp_path / "2.jsonl").write_bytes(start + lines([8, 8, 9]).encode())
    assert is_by_step(tmp_path, monkeypatch)


def test_only_the_lines_of_a_step_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1.jsonl").write_text(lines(IN_ORDER))
    run, parsed = read_run(tmp_path), []
    monkeypatch.setattr(log.tables, "parse_line", lambda line: parsed.append(line) or json.loads(line))
    assert len(run.groups_at(3)) == 3
    assert len(run.groups_at(4)) == 3
    assert len(run.groups_at(3)) == 3
    assert [json.loads(line)["step"] for line in parsed] == [3] * 6 + [4] * 6


@pytest.mark.parametrize(("steps", "is_cheap"), [(IN_ORDER, True), (MIXED, False)])
def test_mixed_steps_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[int], is_cheap: bool
) -> None:
    monkeypatch.undo()  # one block
    (tmp_path / "1.jsonl").write_text(lines(steps))
    assert is_by_step(tmp_path, monkeypatch) == is_cheap


@pytest.mark.parametrize("num_files", [1, 8])
@pytest.mark.parametrize("suffix", ["jsonl.gz", "parquet"])
def test_compressed_files_are_passed_over_a_few_times_at_most_and_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int, suffix: str
) -> None:
    monkeypatch.setattr(log, "_MAX_PASSES", 2)
    for number in range(num_files):
        part, file = IN_ORDER[number * 48 // num_files :][: 48 // num_files], tmp_path / f"{number}.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows(part)), file)
        else:
            file.write_bytes(gzip.compress(lines(part).encode()))
    assert is_by_step(tmp_path, monkeypatch) == (num_files == 8)


DAMAGES = ("", "3,short\n", '4,"open, p, 1, text\n', "5,g1,p,,\n", "\n\n", "6,g1,p,1.0,a\rb\n")


@pytest.mark.parametrize(
    ("suffix", "damage"), [*((".csv", damage) for damage in DAMAGES), (".csv.gz", DAMAGES[2]), (".tsv", DAMAGES[1])]
)
def test_csv_steps_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, suffix: str) -> None:
    delimiter = "\t" if suffix == ".tsv" else ","
    cells = [[*[*row.values()][:-1], f'a "{row["completion"]}"\n{delimiter}'] for row in rows(IN_ORDER)]
    file = io.StringIO("")
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([rows([1])[0], *cells])
    head, middle, tail = file.getvalue().partition("\n5")
    data = ("\ufeff" + head + "\n" + damage.replace(",", delimiter) + middle.lstrip("\n") + tail).encode()
    (tmp_path / f"1{suffix}").write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    monkeypatch.setattr(log, "_MAX_PASSES", 9)  # a compressed file is read from its start
    assert is_by_step(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("steps", "size", "few"),
    [(IN_ORDER, 1, 0), (IN_ORDER, 5, 3), (IN_ORDER, 6, 16), (MIXED, 5, 0), (MIXED, 6, 3), (IN_ORDER, 100, 0)],
)
def test_steps_of_parquet_are_those_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[int], size: int, few: int
) -> None:
    monkeypatch.setattr(log, "_FEW_STEPS", few)
    without_reward = [{**row, "reward": row["reward"] if index % 7 else None} for index, row in enumerate(rows(steps))]
    pq.write_table(pa.Table.from_pylist(without_reward), tmp_path / "1.parquet", row_group_size=size)
    assert is_by_step(tmp_path, monkeypatch) == (size < 100)  # of a row group alone all rows before a step are decoded


def test_of_a_large_row_group_only_the_rows_of_a_step_become_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.Table.from_pylist(rows([step for step in range(100) for _ in range(6)]))
    pq.write_table(table, tmp_path / "1.parquet")
    run, made = read_run(tmp_path), list[str]()
    original = log.parquet_rows_in
    monkeypatch.setattr(log, "parquet_rows_in", lambda *args: (made.append(row[0]) or row for row in original(*args)))
    assert [group.step for group in run.groups_at(70)] == [70] * 3
    assert made == [f"{tmp_path / '1.parquet'}:{number}" for number in range(421, 427)]


def test_all_steps_of_a_document_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1.json").write_text(json.dumps(rows(IN_ORDER)))
    read: list[Path] = []
    original = tables.read_json_rows
    monkeypatch.setattr(tables, "read_json_rows", lambda path, log: read.append(path) or original(path, log))
    run = read_run(tmp_path)
    before = len(read)
    assert [group.step for group in run.groups] == [step for step in range(1, 9) for _ in range(3)]
    assert [run.groups_at(step)[0].step for step in (8, 1)] == [8, 1]
    assert len(read) == before + 1


def test_a_shorter_table_in_place_of_the_one_that_was_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.Table.from_pylist(rows(IN_ORDER)), path)
    run = read_run(path)
    pq.write_table(pa.Table.from_pylist(rows([1])), path)
    refused("Step 8 does not have the rollouts any more that it had", run.groups_at, 8)


def test_a_log_that_was_changed_in_between_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(lines(IN_ORDER))
    run = read_run(path)
    path.write_text(lines(MIXED))
    refused("Step 3 does not have the rollouts any more that it had", run.groups_at, 3)
    path.unlink()
    refused(r"1\.jsonl cannot be read", run.groups_at, 3)

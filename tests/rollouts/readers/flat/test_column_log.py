from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from gradscope.rollouts.readers.scan.line_columns import LineColumns
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.lines import scan_lines
from gradscope.rollouts.readers.scan.table_files import CellColumns

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.column_log import column_log
from gradscope.rollouts.readers.flat.records import FlatColumns
from gradscope.rollouts.readers.parsing.jsonl import parse_line
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.reduction.log import ColumnLog
from tests.rollouts.readers.reduced import assert_same, every_log_is_large, write_lines


def log_of(*present: str, sample: str | None = None, **names: str) -> ColumnLog:
    flat = FlatColumns(names=ColumnNames(reward="reward", **names), rewards=("reward",), sample=sample)
    return column_log([Path("a.jsonl")], flat, present, QuarantineLog())


def lines_of(log: ColumnLog) -> LineColumns:
    declared = log.declared(Path("a.jsonl"))
    assert isinstance(declared, LineColumns)
    return declared


def test_a_file_is_read_as_its_name_promises() -> None:
    log = log_of(step="step", group="g")
    assert lines_of(log) is log.declared(Path("b.txt"))
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        assert isinstance(log.declared(Path(name)), CellColumns), name
    assert log.declared(Path("a.json")) is None
    assert log.columns == lines_of(log).columns == ("reward", "reward/reward")


def test_samples_are_told_apart_in_lines_alone() -> None:
    log = log_of(group="g", sample="id")
    assert log.columns[-1] == "sample"
    assert log.declared(Path("a.csv")) is None


def test_groups_without_a_name_are_named_by_their_prompts() -> None:
    log = log_of(prompt="prompt")
    cells = log.declared(Path("a.csv"))
    assert isinstance(cells, CellColumns)
    assert (cells.group_is_prompt, lines_of(log).group_is_prompt) == (True, True)
    assert cells.prompt_id("2+2?") == lines_of(log).prompt_id({"prompt": "2+2?"})


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ('"generation_seconds": 2.5', 2.5),
        ('"timing": {"llm_time": 2}', 2.0),
        ('"timing": {"generation_ms": 1500}', 1.5),
        ('"generation_seconds": -1, "timing": {"llm_time": 2}', 2.0),
        ('"generation_seconds": "x", "timing": 3', None),
        ('"generation_seconds": 1e999', None),
    ],
)
def test_seconds_are_those_of_the_row_reader(cells: str, seconds: float | None) -> None:
    log = log_of("generation_seconds", "timing", group="g")
    line = f'{{"g": "a", "reward": 1, {cells}}}\n'.encode()
    part = scan_lines(LineQueries(duckdb.connect()), [line], lines_of(log)).part
    assert part is not None
    (found,) = part.columns["seconds"].tolist()
    assert found == seconds or (seconds is None and found != found)
    (record,) = log.records(Path("a.jsonl"), log_rows(line), QuarantineLog())
    assert record.seconds == seconds


def log_rows(line: bytes) -> list[tuple[str, dict[str, object]]]:
    row = parse_line(line)
    assert isinstance(row, dict)
    return [("a:1", row)]


def test_an_empty_prompt_tells_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every_log_is_large(monkeypatch)
    rows = [{"prompt": text, "completion": "4", "reward": 1.0, "step": 1} for text in ("2+2", "", "2+2")]
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    run = assert_same(path, is_reduced=True)
    assert run is not None
    assert run.source.quarantined.reasons[0].reason == "prompt is missing"


def test_a_broken_advantage_makes_a_line_odd() -> None:
    columns = lines_of(log_of(group="g", advantage="a"))
    line = b'{"g": "a", "reward": 1, "a": %s}\n'
    data = b"".join(line % cell for cell in (b"0.5", b"null", b"NaN", b"-Infinity", b'"x"'))
    assert scan_lines(LineQueries(duckdb.connect()), [data], columns).odd.tolist() == [2, 3]

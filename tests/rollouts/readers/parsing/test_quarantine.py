import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.errors import InputError
from gradscope.results.source import BLANK
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import quarantine as quarantine_module
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, WatchedLog, refuse_quarantined
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import refused
from tests.rollouts.readers.reduced import read_by_row


def filled() -> QuarantineLog:
    log = QuarantineLog()
    for reason, location in (("blank", "log:3"), ("text", "log:4"), ("text", "log:9"), ("absent", "log:5")):
        log.add(reason, location)
    return log


def test_reasons_are_counted_with_their_first_location_the_most_frequent_first() -> None:
    result = filled().result()
    assert result.num_rows == 4
    assert [(reason.reason, reason.num_rows, reason.first) for reason in result.reasons] == [
        ("text", 2, "log:4"),
        ("absent", 1, "log:5"),  # equally frequent: by name
        ("blank", 1, "log:3"),
    ]


def test_lines_of_metrics_that_cannot_be_used_are_a_lost_part_of_the_run() -> None:
    log, lines = QuarantineLog(), filled()
    lines.add(BLANK, "log:7")
    log.add_unreadable_metrics(lines)
    hint = refused(r"^2 lines of metrics cannot be used: text \(first at log:4\)\.$", log.raise_unreadable)
    assert hint == "Copy the file again."
    assert [lost.partition(":")[0] for lost in log.result().lost] == [
        "2 lines of metrics cannot be used",
        "1 line of metrics cannot be used",
        "1 line of metrics cannot be used",
    ]


def test_a_line_that_holds_many_rollouts_counts_as_many_as_those_that_were_read() -> None:
    log = QuarantineLog()
    lines = log.for_lines()
    for size in (64, 32, 0):  # the last one repeats another
        lines.count_rollouts(size)
    for reason, location in (("text", "log:4"), ("text", "log:5"), (BLANK, "log:6")):
        lines.add(reason, location)
    log.add("text", "log:7")
    lines.add_unreadable(InputError("gone", hint="."))
    result = log.result()
    assert [(reason.num_rows, reason.num_rollouts, reason.counted) for reason in result.reasons] == [
        (3, 65, "3 lines of some 65 rollouts"),
        (1, 0, "1 row"),
    ]
    assert (result.num_rows, result.num_rollouts, result.lost) == (4, 65, ("gone",))
    merged = QuarantineLog()
    merged.include(log, {})
    assert merged.result() == result


def test_lines_of_which_none_was_read_count_as_lines() -> None:
    log = QuarantineLog()
    log.for_lines().add("text", "log:1")
    assert (log.result().num_rollouts, log.result().counted) == (1, "1 row")


def test_strict_reading_names_the_most_frequent_reason() -> None:
    hint = refused(r"^Rows that cannot be used: 4; first log:4: text\.$", refuse_quarantined, filled().result())
    assert "leave out --strict" in hint
    refuse_quarantined(QuarantineLog().result())


ROWS = [{"prompt_id": f"p{i // 4}", "step": 1 + i // 40, "reward": i % 3 // 2, "text": "x" * 100} for i in range(400)]


@pytest.fixture(autouse=True)
def every_kilobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "_MEGABYTE", 1 << 10)


def reports_of(path: Path) -> list[tuple[float, int, str]]:
    reports: list[tuple[float, int, str]] = []
    read_by_row(path, progress=lambda *now: reports.append(now))
    return reports


def written(folder: Path, name: str) -> Path:
    path = folder / name
    lines = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path, compression="none", use_dictionary=False)
    elif name.endswith(".csv"):
        path.write_text("".join(f"{','.join(map(str, row))}\n" for row in [ROWS[0].keys(), *map(dict.values, ROWS)]))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode(), compresslevel=0))
    else:
        path.write_text(lines)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.csv", "a.parquet", "a.json"])
def test_rows_of_every_kind_of_file_tell_how_far_they_are(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    reports = reports_of(path)
    total = path.stat().st_size >> 10
    assert len(reports) > 5
    assert [label for _, label, _ in reports] == [total] * len(reports)
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    assert reports[-1][0] >= total - 2
    assert reports[-1][2].removesuffix(" rows") in {f"MB read, {number}" for number in range(380, 402)}


def test_a_compressed_file_counts_when_it_is_read_for_nobody_knows_what_is_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl.gz")
    total = path.stat().st_size >> 10
    assert reports_of(path) == [(total, total, "MB read, 400 rows")]


LOGS = (
    *("areal", "art", "evalplus", "generic.csv", "lighteval", "lm_eval", "miles", "ms_swift", "nemo_rl"),
    *("open_instruct", "prime_rl", "prime_rl_stream", "prime_rl_tokens", "ragen", "relax", "rllm", "roll"),
    *("samples_lists.jsonl", "samples_nested.json", "skyrl_eval", "slime", "tinker", "verl_v1"),
)


@pytest.mark.parametrize("name", LOGS)
def test_every_reader_of_rows_tells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "_MEGABYTE", 8)
    reports = reports_of(REPOSITORY / "fixtures" / "logs" / name)
    assert reports
    assert all(0 < done <= total for done, total, _ in reports)
    assert reports[-1][2].startswith("MB read, ")


def test_a_file_that_is_read_twice_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 4096)
    reports: list[tuple[float, int, str]] = []
    log = WatchedLog(lambda *now: reports.append(now), [path])
    for _ in range(3):
        log.count_read(3000)
    assert reports == [(2, 4, "MB read, 1 rows"), (4, 4, "MB read, 2 rows"), (4, 4, "MB read, 3 rows")]


def all_nan(cell: Any) -> Any:
    return list(map(all_nan, cell)) if isinstance(cell, list) else math.nan


@pytest.mark.parametrize(
    ("log", "num_rows"), [("ms_swift", 8), ("nemo_rl", 4), ("open_instruct", 6), ("verl_v1_tokens", 5)]
)
def test_rollouts_whose_advantages_are_no_numbers_count_by_their_rewards(
    tmp_path: Path, log: str, num_rows: int
) -> None:
    folder = shutil.copytree(REPOSITORY / "fixtures/logs" / log, tmp_path / log)
    rewards = [group.rewards for group in read_run(folder).groups]
    for file in folder.rglob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row |= {name: all_nan(row[name]) for name in ("advantage", "advantages") if name in row}
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = read_run(folder)
    assert run.source.broken_advantages is not None
    assert run.source.broken_advantages.num_rows == num_rows
    assert run.source.frac_set_aside.value == 1
    assert [group.rewards for group in run.groups] == rewards
    assert {rollout.advantage for group in run.groups for rollout in group.rollouts} == {None}

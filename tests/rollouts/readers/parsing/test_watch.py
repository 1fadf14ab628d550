"""Whoever waits for a log that is read row by row is told of bytes and rows, whatever the format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.readers.parsing import watch
from gradscope.rollouts.readers.parsing.watch import WatchedLog
from tests.conftest import REPOSITORY
from tests.rollouts.readers.reduced import read_by_row

ROWS = [
    {"prompt_id": f"p{place // 4}", "step": 1 + place // 40, "reward": place % 3 // 2, "text": "x" * 100}
    for place in range(400)
]


@pytest.fixture(autouse=True)
def every_kilobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MEGABYTE", 1 << 10)


def told_of(path: Path) -> list[tuple[float, int, str]]:
    told: list[tuple[float, int, str]] = []
    read_by_row(path, progress=lambda *now: told.append(now))
    return told


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
    told = told_of(path)
    total = path.stat().st_size >> 10
    assert len(told) > 5
    assert [of for _, of, _ in told] == [total] * len(told)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][0] >= total - 2
    assert told[-1][2].removesuffix(" rows") in {f"MB read, {number}" for number in range(380, 402)}


def test_a_compressed_file_counts_when_it_is_read_for_nobody_knows_what_is_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl.gz")
    total = path.stat().st_size >> 10
    assert told_of(path) == [(total, total, "MB read, 400 rows")]


LOGS = (
    *("areal", "art", "evalplus", "generic.csv", "lighteval", "lm_eval", "miles", "ms_swift", "nemo_rl"),
    *("open_instruct", "prime_rl", "prime_rl_stream", "prime_rl_tokens", "ragen", "relax", "rllm", "roll"),
    *("samples_lists.jsonl", "samples_nested.json", "skyrl_eval", "slime", "tinker", "verl_v1"),
)


@pytest.mark.parametrize("name", LOGS)
def test_every_reader_of_rows_tells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MEGABYTE", 8)
    told = told_of(REPOSITORY / "fixtures" / "logs" / name)
    assert told
    assert all(0 < done <= total for done, total, _ in told)
    assert told[-1][2].startswith("MB read, ")


def test_a_file_that_is_read_twice_is_done_once(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 4096)
    told: list[tuple[float, int, str]] = []
    log = WatchedLog(lambda *now: told.append(now), [path])
    for _ in range(3):
        log.passed(3000)
    assert told == [(2, 4, "MB read, 1 rows"), (4, 4, "MB read, 2 rows"), (4, 4, "MB read, 3 rows")]

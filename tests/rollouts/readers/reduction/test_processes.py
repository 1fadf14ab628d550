"""Files scanned in one process or in several: the same blocks in the same order."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import lines, processes
from gradscope.rollouts.readers.reduction.lines import Scanned
from gradscope.rollouts.readers.reduction.processes import scan_files
from tests.rollouts.readers.reduction.test_lines import COLUMNS, LINE


def write(folder: Path, *contents: bytes) -> list[Path]:
    files = [folder / f"{at}.jsonl" for at in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def told(files: list[Path], ends: dict[int, int] | None = None) -> list[tuple[int, int, int] | int]:
    found = scan_files(files, lambda file: None if file.suffix == ".json" else COLUMNS, ends or {})
    return [(one.file, one.num_rows, one.end) if isinstance(one, Scanned) else one for one in found]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MIN_FORKED", 0)
    monkeypatch.setattr(processes, "_num_cores", lambda: 2)
    monkeypatch.setattr(processes, "RANGE", 150)


@pytest.mark.usefixtures("forked")
def test_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path, LINE * 20, b"", LINE * 3 + b"{\n" + LINE, LINE[:-1])
    (tmp_path / "d.json").write_text("[]")
    files.insert(2, tmp_path / "d.json")
    found = told(files)
    monkeypatch.setattr(processes, "_can_fork", lambda: False)
    assert found == told(files)
    assert [one if isinstance(one, int) else one[0] for one in found] == [0] * 6 + [2, 3, 4]
    assert sum(one[1] for one in found if isinstance(one, tuple)) == 26


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    size = len(LINE)
    files = write(tmp_path, LINE, LINE * 2, LINE)
    assert told(files, {0: size, 1: size}) == [(1, 1, 2 * size), (2, 1, size)]


@pytest.mark.usefixtures("forked")
def test_a_run_is_the_same_however_many_processes_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": at // 12, "group_id": f"g{at // 4}", "reward": at % 3 / 2} for at in range(60)]
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
    assert [(one.reason, one.first.rpartition("/")[2]) for one in alone.source.quarantined.reasons] == [
        ("the reward is null", "0.jsonl:8"),
        ("the step is not a whole number", "1.jsonl:11"),
    ]


@pytest.mark.usefixtures("forked")
def test_what_goes_wrong_in_a_process_is_raised(tmp_path: Path) -> None:
    files = write(tmp_path, LINE * 20)
    with pytest.raises(FileNotFoundError):
        list(scan_files(files, lambda file: file.unlink(missing_ok=True) or COLUMNS, {}))  # type: ignore[func-returns-value]

"""A look at a log that has grown has the answers of a look at the whole of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import lines, so_far
from gradscope.rollouts.readers.reduction.so_far import ReadSoFar
from gradscope.rollouts.run import Run


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 200)
    monkeypatch.setattr(so_far, "_MARK", 16)


def line(step: int, group: str, reward: Any, **cells: Any) -> str:
    return json.dumps({"step": step, "group_id": group, "reward": reward, **cells}) + "\n"


def answers(run: Run) -> tuple[Any, ...]:
    groups = [(group.step, group.group_id, group.prompt_id, group.rewards) for group in run.groups]
    return groups, run.source.quarantined, run.source.num_rows


class Log:
    """A folder with one file, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "1.jsonl"
        self.so_far = ReadSoFar()
        self.read: list[int] = []

    def look(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """How many bytes a look reads; its answers are those of a first look."""
        read: list[int] = []
        original = lines.blocks_in

        def spy(path: Path, start: int = 0, end: int | None = None) -> Iterator[lines.LineBlock]:
            for block in original(path, start, end):
                read.append(len(block.data))
                yield block

        with monkeypatch.context() as patch:
            patch.setattr(lines, "blocks_in", spy)
            again = read_run(self.file.parent, rewards_only=True, so_far=self.so_far)
        assert answers(again) == answers(read_run(self.file.parent, rewards_only=True))
        return sum(read)

    def append(self, text: str) -> int:
        with self.file.open("a") as stream:
            stream.write(text)
        return len(text)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path)
    made.append("".join(line(1, f"g{at // 4}", at % 2) for at in range(40)))
    return made


def test_what_was_appended_is_read_and_nothing_else(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.look(monkeypatch) == log.file.stat().st_size
    assert log.look(monkeypatch) == 0
    # of an old group, without a reward, no JSON, and of a new step
    added = log.append(line(1, "g3", 1) + line(1, "g4", None) + "{\n" + line(2, "g0", 0))
    assert log.look(monkeypatch) == added
    (log.file.parent / "2.jsonl").write_text(line(3, "g0", None) + line(3, "g0", 1))
    assert log.look(monkeypatch) == (log.file.parent / "2.jsonl").stat().st_size


def test_a_line_that_is_still_being_written_is_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.look(monkeypatch)
    whole = line(2, "g0", 1)
    log.append(whole[:20])
    assert log.look(monkeypatch) == 20
    log.append(whole[20:-1])
    assert log.look(monkeypatch) == len(whole) - 1
    log.append("\n" + line(2, "g0", None))
    assert log.look(monkeypatch) == len(whole) + len(line(2, "g0", None))


def test_reasons_keep_the_place_of_the_first_row(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    (log.file.parent / "2.jsonl").write_text(line(2, "g0", None))
    log.append(line(1, "g0", None)[:-1])  # without its end, and before the other file
    log.look(monkeypatch)
    log.look(monkeypatch)


@pytest.mark.parametrize("change", ["cut", "anew", "replaced", "earlier", "other_end", "gone", "columns"])
def test_a_log_that_did_anything_else_is_read_from_its_start(
    log: Log, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log.look(monkeypatch)
    content = log.file.read_text()
    match change:
        case "cut":
            os.truncate(log.file, len(content) // 2)
        case "anew":
            log.file.write_text(content.replace("g0", "h0", 1))
        case "replaced":
            other = log.file.with_name("other")
            other.write_text(content)
            other.replace(log.file)
        case "earlier":
            (log.file.parent / "0.jsonl").write_text(line(1, "g0", 1))
        case "other_end":
            log.file.write_text(content[:-5] + " }\n" + content)
        case "gone":
            log.file.rename(log.file.with_name("5.jsonl"))
        case _:
            log.file.write_text(line(1, "g0", 1, format_reward=1.0) + content)
    size = sum(file.stat().st_size for file in log.file.parent.iterdir())
    assert log.look(monkeypatch) == size


def test_a_compressed_log_is_read_from_its_start(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    content = log.file.read_bytes()
    log.file.unlink()
    (log.file.parent / "1.jsonl.gz").write_bytes(gzip.compress(content))
    assert [log.look(monkeypatch) for _ in range(2)] == [len(content)] * 2

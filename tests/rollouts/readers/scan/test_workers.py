from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.scan import workers
from gradscope.rollouts.readers.scan.line_columns import LineColumns
from gradscope.rollouts.readers.scan.line_queries import LineQueries
from gradscope.rollouts.readers.scan.workers import Block, FileBlock, LineBlock, Workers, blocks_of


def columns(step: str = "0") -> LineColumns:
    return LineColumns(
        paths=("$.a",), step=step, group="c[1]", prompt=("c[1]",), prompt_id=str, reward="1.0", rewards={}
    )


LINES = columns()


def write(folder: Path, *contents: bytes) -> list[Path]:
    files = [folder / f"{at}.jsonl" for at in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


def pieces_of(block: Block) -> list[tuple[int, bytes, bool]]:
    assert isinstance(block, LineBlock)
    return [(piece.file, piece.data, piece.is_first) for piece in block.pieces]


def test_small_files_share_a_block_and_a_large_one_has_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BLOCK", 8)
    files = write(tmp_path, b"1\n", b"", b"2\n", b"34\n56\n78\n9")
    blocks = list(blocks_of(files, lambda _: LINES))
    assert [pieces_of(block) for block in blocks] == [
        [(0, b"1\n", True), (2, b"2\n", True), (3, b"34\n56\n", True)],
        [(3, b"78\n", False)],
        [(3, b"9", False)],
    ]
    assert [block.end for block in blocks] == [10, 13, 14]
    assert [block.pieces[-1].is_open for block in blocks if isinstance(block, LineBlock)] == [False, False, True]


def test_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    files = write(tmp_path, b"1\n", b"2\n34\n", b"5\n")
    (block,) = blocks_of(files, lambda _: LINES, {files[0]: 2, files[1]: 2})
    assert pieces_of(block) == [(1, b"34\n", False), (2, b"5\n", True)]


def test_lines_that_are_read_in_another_way_have_blocks_of_their_own(tmp_path: Path) -> None:
    files = write(tmp_path, b"1\n", b"2\n", b"3\n", b"4\n")
    other = columns(step="1")
    declared = dict(zip(files, (LINES, other, None, other), strict=True))
    first, second, third, fourth = blocks_of(files, declared.__getitem__)
    assert [pieces_of(block) for block in (first, second, fourth)] == [
        [(0, b"1\n", True)],
        [(1, b"2\n", True)],
        [(3, b"4\n", True)],
    ]
    assert isinstance(second, LineBlock)
    assert second.columns is other
    assert third == FileBlock(file=2, path=files[2], columns=None, end=6)


def test_a_mark_is_taken_off_the_first_line_of_a_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BLOCK", 5)
    mark = b"\xef\xbb\xbf"
    found = [piece for block in blocks_of(write(tmp_path, mark + b"1\n" + mark + b"2\n"), lambda _: LINES)
             for piece in pieces_of(block)]  # fmt: skip
    assert found == [(0, b"1\n", True), (0, mark + b"2\n", False)]


def test_how_far_a_compressed_file_is_read_is_known_at_its_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "BLOCK", 4)
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b"12\n34\n56\n78"))
    blocks = list(blocks_of([file], lambda _: LINES))
    assert b"".join(data for block in blocks for _, data, _ in pieces_of(block)) == b"12\n34\n56\n78"
    assert [block.end for block in blocks][:1] == [0]


def test_a_file_that_cannot_be_decompressed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b"1\n" * 1000)[:-10])
    quarantine = QuarantineLog()
    list(blocks_of([file], lambda _: LINES, quarantine=quarantine))
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read"):
        quarantine.raise_lost()


def test_a_line_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BLOCK", 1 << 18)
    monkeypatch.setattr(workers, "MOST_ROW", 1 << 20)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"1\n" + b"x" * (3 << 19) + b"\n2\n")
    quarantine = QuarantineLog()
    found = list(blocks_of([file], lambda _: LINES, quarantine=quarantine))
    assert [data for block in found for _, data, _ in pieces_of(block)] == [b"1\n"]
    assert "has a line of more than 1 MiB" in quarantine.result().lost[0]


def test_a_block_knows_the_steps_that_its_files_tell(tmp_path: Path) -> None:
    files = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for file in files:
        file.write_bytes(b"{}\n")
    by_name = replace(LINES, file_step=lambda path: int(path.stem))
    for declared, steps in ((LINES, None), (by_name, [1, 2])):
        (block,) = blocks_of(files, lambda _, declared=declared: declared)
        assert isinstance(block, LineBlock)
        assert (block.data, block.file_steps) == ([b"{}\n", b"{}\n"], steps)


def test_answers_come_in_the_order_of_blocks_and_blocks_only_as_they_are_needed(tmp_path: Path) -> None:
    taken: list[int] = []

    def blocks() -> Iterator[Block]:
        for number in range(40):
            taken.append(number)
            yield FileBlock(file=number, path=tmp_path, columns=None, end=0)

    def work(queries: LineQueries, block: Block) -> int:
        assert isinstance(block, FileBlock)
        time.sleep(0.002 if block.file % 2 else 0)
        return int(queries.connection.sql(f"SELECT {block.file}").fetchall()[0][0])

    with Workers() as some:
        found = some.map(blocks(), work)
        assert next(found)[1] == 0
        assert len(taken) < 40
        assert [number for _, number in found] == list(range(1, 40))


def test_what_goes_wrong_in_a_thread_is_raised_where_its_answer_is_taken(tmp_path: Path) -> None:
    def work(queries: LineQueries, block: Block) -> None:
        raise InputError(f"{block.end} is wrong.", hint="Look.")

    with Workers() as some, pytest.raises(InputError, match="0 is wrong"):
        list(some.map([FileBlock(file=0, path=tmp_path, columns=None, end=0)], work))


def test_logs_share_a_database_and_leave_no_connection_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(queries: LineQueries, block: Block) -> Any:
        queries.connection.execute("CREATE TEMP TABLE own AS SELECT 1")  # which another log does not see
        return queries.connection

    kept = []
    with Workers() as one, Workers() as other:
        for each in (one, other):
            (found,) = each.map([FileBlock(file=0, path=tmp_path, columns=None, end=0)], work)
            kept.append(found[1])
    for connection in kept:
        with pytest.raises(duckdb.ConnectionException, match="closed"):
            connection.execute("SELECT 1")
    monkeypatch.setattr(duckdb, "connect", lambda **_: pytest.fail("another is opened"))
    with Workers():
        pass

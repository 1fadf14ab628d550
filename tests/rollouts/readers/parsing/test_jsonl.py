import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing import jsonl
from gradscope.rollouts.readers.parsing.jsonl import parse_line, read_jsonl, read_span
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a": 1}\n', {"a": 1}),
        (b'{"a": "\xc3\xa9"}', {"a": "é"}),
        (b" \r\n", "the line is blank"),
        (b'{"a": "\xe9"}\n', "the line is not UTF-8"),
        (b'{"a": \n', "the line is not JSON"),
        (b'{"a": ', "the last line is cut off"),
        (b"[1]\n", "the line is not a JSON object"),
        (b"null\n", "the line is not a JSON object"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", "the line is nested deeper than 100 levels"),
    ],
)
def test_a_line_is_an_object_or_says_why_not(line: bytes, expected: object) -> None:
    assert parse_line(line) == expected


def test_numbers_that_json_does_not_have_are_read_so_that_the_reward_is_judged() -> None:
    row = parse_line(b'{"reward": -Infinity}\n')
    assert row == {"reward": float("-inf")}


def test_line_numbers_count_all_lines_and_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}')
    quarantine = QuarantineLog()
    assert list(read_jsonl(path, quarantine)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": 2})]
    assert quarantine.result().reasons[0].first == f"{path}:2"


@pytest.mark.parametrize(
    "content", [gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-10], b"not gzip"], ids=["cut off", "not gzip"]
)
def test_broken_compression_is_set_aside_and_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    quarantine = QuarantineLog()
    list(read_jsonl(path, quarantine))
    assert str(path) in quarantine.result().lost[0]
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read"):
        quarantine.raise_lost()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_some_bytes_of_a_file_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(jsonl, "_PASSED_AT_ONCE", 2)
    path = tmp_path / f"a.jsonl{suffix}"
    kind = {".gz": "gzip", ".zst": "zstd"}.get(suffix)
    path.write_bytes(pa.compress(b"0123456789", kind, asbytes=True) if kind else b"0123456789")
    spans = [read_span(path, start, end) for start, end in ((0, 3), (5, 8), (8, 20), (12, 14))]
    assert spans == [b"012", b"567", b"89", b""]


def test_a_file_without_rows_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MOST_FLAWED", 3)
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n\n{}\n\n\n\n{}\n\n\n\n\n{}\n")
    quarantine = QuarantineLog()
    assert [location.rpartition(":")[2] for location, _ in read_jsonl(path, quarantine)] == ["4", "8"]
    assert quarantine.result().lost == (f"{path} has no row in 3 lines from line 9 on.",)

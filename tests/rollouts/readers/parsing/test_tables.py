from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.errors import InputError
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import expand, read_parquet, read_rows


def rows(path: Path) -> tuple[list[dict[str, object]], dict[str, str]]:
    quarantine = QuarantineLog()
    found = [row for _, row in read_rows(path, quarantine)]
    return found, {reason.reason: reason.first.rpartition(":")[2] for reason in quarantine.result().reasons}


def test_a_csv_may_hold_long_cells_and_line_ends_and_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    long = "x" * 200_000
    path.write_bytes(f'a,b\n"1\n2",{long}\n\n3\n4,'.encode() + b"\xff\n")
    found, set_aside = rows(path)
    assert found == [{"a": "1\n2", "b": long}]
    assert set_aside == {
        "the line is blank": "4",
        "the row has more or fewer cells than the header": "5",
        "the line is not UTF-8": "6",
    }


def test_a_csv_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    assert rows(path) == ([], {})


def test_a_json_document_is_a_list_or_an_object_or_json_lines_after_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, expected in (
        ('[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('{"a":\n 1}', [{"a": 1}]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
    ):
        path.write_text(content)
        assert rows(path) == (expected, {})
    path.write_text('[{"a": 1}, 2]')
    assert rows(path) == ([{"a": 1}], {"the element is not a JSON object": "2"})


def test_parquet_rows_are_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "day=1" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), path)
    found = list(read_rows(path, QuarantineLog()))
    assert found == [(f"{path}:1", {"a": 1}), (f"{path}:2", {"a": 2})]


def test_a_truncated_parquet_is_set_aside_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:500])
    quarantine = QuarantineLog()
    assert list(read_rows(path, quarantine)) == []
    assert "a.parquet is not a readable Parquet file" in quarantine.result().lost[0]
    with pytest.raises(InputError, match=r"a\.parquet is not a readable Parquet file"):
        read_parquet(path)


def test_a_parquet_whose_names_are_no_text_is_set_aside(tmp_path: Path) -> None:
    path, log = tmp_path / "a.parquet", QuarantineLog()
    pq.write_table(pa.table({"reward": [1.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"reward", b"rew\xffrd"))
    assert list(read_rows(path, log)) == []
    assert "is not a readable Parquet file" in log.result().lost[0]


_LATIN = b"caf\xe9"
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (_LATIN, pa.string()),
        (_LATIN, pa.large_string()),
        ([b"a", _LATIN], pa.list_(pa.string())),
        ({"role": b"user", "content": _LATIN}, _MESSAGE),
        ([{"role": b"user", "content": _LATIN}], pa.list_(_MESSAGE)),
        ([[b"a"], [_LATIN]], pa.list_(pa.list_(pa.string()))),
    ],
    ids=str,
)
def test_text_that_is_not_utf_8_makes_a_parquet_unreadable_wherever_it_is(
    tmp_path: Path, cell: object, kind: pa.DataType
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([cell]).cast(kind, safe=False)}), path)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_parquet(path)
    assert rows(path)[0] == []


def test_a_parquet_that_names_a_column_twice_is_no_table(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["step", "step"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="two columns have the name 'step'"):
        read_parquet(tmp_path / "a.parquet")


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10.jsonl", "9.jsonl.gz", "notes.txt", "b_2.csv"):
        (tmp_path / name).touch()
    (tmp_path / "below.jsonl").mkdir()
    assert [file.name for file in expand(tmp_path)] == ["b_2.csv", "9.jsonl.gz", "10.jsonl"]
    assert [file.name for file in expand(tmp_path / "*.jsonl")] == ["10.jsonl"]
    assert expand(tmp_path / "notes.txt") == (tmp_path / "notes.txt",)
    assert expand(tmp_path / "gone") == ()

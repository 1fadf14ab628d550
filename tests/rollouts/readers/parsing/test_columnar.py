from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing import columnar, tables
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from tests.rollouts.readers.lines import refusal, refused


def test_parquet_rows_are_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "day=1" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), path)
    assert list(tables.read_rows(path, QuarantineLog())) == [(f"{path}:1", {"a": 1}), (f"{path}:2", {"a": 2})]


def test_a_truncated_parquet_is_set_aside_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:500])
    quarantine = QuarantineLog()
    assert list(tables.read_rows(path, quarantine)) == []
    assert "a.parquet is not a readable Parquet file" in quarantine.result().lost[0]
    refused(r"a\.parquet is not a readable Parquet file", columnar.read_parquet, path)


def test_a_parquet_whose_names_are_no_text_is_set_aside(tmp_path: Path) -> None:
    path, log = tmp_path / "a.parquet", QuarantineLog()
    pq.write_table(pa.table({"reward": [1.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"reward", b"rew\xffrd"))
    assert list(tables.read_rows(path, log)) == []
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
def test_text_that_is_not_utf_8_makes_a_parquet_unreadable(tmp_path: Path, cell: object, kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([cell]).cast(kind, safe=False)}), path)
    refused("not a readable Parquet file", columnar.read_parquet, path)
    assert list(tables.read_rows(path, QuarantineLog())) == []


def test_a_parquet_that_names_a_column_twice_is_no_table(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["step", "step"]), tmp_path / "a.parquet")
    refused("two columns have the name 'step'", columnar.read_parquet, tmp_path / "a.parquet")


def test_large_texts_are_decoded_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows, path, decoded = 5_000, tmp_path / "a.parquet", []
    once = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), pa.array(["x" * 20_000]))
    pq.write_table(pa.table({"prompt": once}), path, store_schema=False)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(columnar, "max_unpacked", lambda path: 1 << 40)
    batches = columnar._batches

    def watched(*arguments: Any, **extra: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches(*arguments, **extra):
            decoded.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(columnar, "_batches", watched)
    assert len(columnar.read_parquet(path)) == num_rows
    assert max(decoded) < 22 << 20


def saved(folder: Path, table: pa.Table) -> Path:
    """A dataset as ``save_to_disk`` leaves it."""
    folder.mkdir(parents=True)
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text('{"step": "none"}')
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    return folder


ROLLOUTS = pa.table(
    {"step": [1] * 6, "prompt": ["a", "a", "b", "b", "c", "c"], "reward": [1.0, 0.0, 1.0, 1.0, 0.0, 0.5]}
)


def test_a_dataset_of_hugging_face_is_read_from_disk(tmp_path: Path) -> None:
    folder = saved(tmp_path / "splits" / "train", ROLLOUTS)
    pq.write_table(ROLLOUTS, tmp_path / "same.parquet")
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    same = [group.rewards for group in read_run(tmp_path / "same.parquet").groups]
    with pa.ipc.new_file(tmp_path / "file.arrow", ROLLOUTS.schema) as stream:
        stream.write_table(ROLLOUTS)
    for path in (folder, folder / "data-00000-of-00001.arrow", tmp_path / "file.arrow"):
        assert [group.rewards for group in read_run(path).groups] == same == [(1.0, 0.0), (1.0, 1.0), (0.0, 0.5)]
    assert refusal(tmp_path / "splits", "is a dictionary of datasets") == f"Name one: {folder}"


def test_metrics_in_a_dataset_are_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "log", pa.table({"step": [1, 2], "reward": [0.25, 0.5], "loss": [0.5, 0.25]}))
    assert read_run(folder, metrics_alone=True).metrics[2]["reward"] == 0.5


def test_a_damaged_dataset_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "log", ROLLOUTS)
    file = folder / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    offsets = content.index(b"\0\0\0\0\1\0\0\0\2\0\0\0")
    for damaged in (content[:200], content[:offsets] + b"\xff" * 12 + content[offsets + 12 :]):
        file.write_bytes(damaged)
        refused(r"00001\.arrow is not a readable Arrow file", columnar.read_parquet, file)
    file.write_bytes(content)
    monkeypatch.setattr(columnar, "max_unpacked", lambda path: 60)
    refused(r"00001\.arrow unpacks to more than", columnar.read_parquet, file)


_FAR = pa.array([1 << 61, 1 << 61, 2 << 61])


@pytest.mark.parametrize(
    "prompts",
    [
        pa.array(["a", "a", "b"], pa.string_view()),
        pa.array([b"a", b"a", b"b"], pa.binary_view()),
        pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "a", "b"), pa.array(["a", "a", "b"])),
        _FAR.cast(pa.timestamp("ms")),
        _FAR.cast(pa.timestamp("us", tz="Mars/Base")),
        pa.array([["a"], ["a"], ["b"]], pa.list_(pa.string_view())),
        pa.array([{"a": 1}, {"a": 1}, {"a": 2}]).cast(pa.struct([("a", pa.timestamp("s", tz="Mars/Base"))])),
    ],
    ids=lambda prompts: str(prompts.type),
)
def test_a_prompt_is_of_any_type_that_arrow_has(tmp_path: Path, prompts: pa.Array) -> None:
    pq.write_table(pa.table({"prompt_id": prompts, "time": prompts, "reward": [1.0, 0, 1]}), tmp_path / "a.parquet")
    assert [group.rewards for group in read_run(tmp_path / "a.parquet").groups] == [(1.0, 0.0), (1.0,)]

"""One scan of plain files; that its answers are those of the row reader is held by the tests of the reduction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.flat.duckdb_scan import Keys, Scanned, scan_groups
from gradscope.rollouts.readers.parsing.scalars import digest
from tests.rollouts.readers.lines import write_lines

KEYS = Keys(rewards=("reward", "extra"), step="step", group="uid", prompt="uid", from_text=False)


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as opened:
        yield opened


def row(step: Any = 1, uid: Any = "a", reward: Any = 1.0, extra: Any = 0.5) -> dict[str, Any]:
    return {"step": step, "uid": uid, "reward": reward, "extra": extra}


def groups_of(scanned: Scanned) -> list[tuple[Any, ...]]:
    """File, step, group, prompt and the sorted rewards of each group."""
    return [
        (*(found[name] for name in ("file", "step", "group", "prompt")), sorted(map(str, found["rewards"])))
        for table in scanned.groups
        for found in table.to_pylist()
    ]


def test_each_file_has_its_groups_by_step_and_name(connection: Any, tmp_path: Path) -> None:
    first = write_lines(tmp_path / "1.jsonl", row(2), row(1, "b"), row(1, "a", 0), row(1, "a", True, None))
    second = write_lines(tmp_path / "2.jsonl", row(1, "a", -1.0, 2.0))
    scanned = scan_groups(connection, {5: first, 7: second}, KEYS)
    assert scanned.others == ()
    assert groups_of(scanned) == [
        (5, 1, "a", "a", ["{'0': 0.0, '1': 0.5}", "{'0': 1.0, '1': None}"]),
        (5, 1, "b", "b", ["{'0': 1.0, '1': 0.5}"]),
        (5, 2, "a", "a", ["{'0': 1.0, '1': 0.5}"]),
        (7, 1, "a", "a", ["{'0': -1.0, '1': 2.0}"]),
    ]


@pytest.mark.parametrize(
    "odd", [row(reward="1"), row(reward=None), row(step="x"), row(uid=""), row(uid=[1]), row(step=1.5)]
)
def test_a_file_with_one_odd_row_is_left_to_the_row_reader(
    connection: Any, tmp_path: Path, odd: dict[str, Any]
) -> None:
    plain = write_lines(tmp_path / "1.jsonl", row())
    mixed = write_lines(tmp_path / "2.jsonl", row(), odd)
    scanned = scan_groups(connection, {0: plain, 1: mixed}, KEYS)
    assert scanned.others == (1,)
    assert [found[0] for found in groups_of(scanned)] == [0]


@pytest.mark.parametrize("text", ["\n", "{", '"text"\n'])
def test_a_line_that_is_no_row_is_noticed_although_duckdb_passes_over_it(
    connection: Any, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row()) + "\n" + text)
    scanned = scan_groups(connection, {0: path}, KEYS)
    assert (scanned.others, groups_of(scanned)) == ((0,), [])


def test_prompts_that_are_text_get_the_digest_that_the_row_reader_gives(connection: Any, tmp_path: Path) -> None:
    keys = Keys.of(ColumnNames(prompt="uid", reward="reward"), ("reward",))
    assert keys == Keys(rewards=("reward",), step=None, group="uid", prompt="uid", from_text=True)
    (found,) = groups_of(scan_groups(connection, {0: write_lines(tmp_path / "a.jsonl", row())}, keys))
    assert found[:4] == (0, 0, digest("a"), digest("a"))


def test_keys_prefer_the_group_then_the_prompts_id() -> None:
    keys = Keys.of(ColumnNames(group="uid", prompt_id="task", prompt="text", reward="r"), ("r", "r2"))
    assert keys == Keys(rewards=("r", "r2"), step=None, group="uid", prompt="task", from_text=False)
    keys = Keys.of(ColumnNames(group="uid", prompt="text", reward="r"), ())
    assert (keys.group, keys.prompt, keys.from_text) == ("uid", "text", True)


def test_typed_columns_are_read_as_they_are_typed(connection: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist([row(), row(reward=0.0)]), path)
    ((_, step, *_, rewards),) = groups_of(scan_groups(connection, {0: path}, KEYS))
    assert (step, rewards) == (1, ["{'0': 0.0, '1': 0.5}", "{'0': 1.0, '1': 0.5}"])
    pq.write_table(pa.Table.from_pylist([row(reward="1.0")]), path)
    assert scan_groups(connection, {0: path}, KEYS).others == (0,)


def test_of_files_that_fail_together_the_others_are_still_reduced(connection: Any, tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.jsonl", row())
    bad = tmp_path / "bad.jsonl.gz"
    bad.write_bytes(b"no gzip")
    scanned = scan_groups(connection, {0: good, 1: bad}, KEYS)
    assert (scanned.others, [found[0] for found in groups_of(scanned)]) == ((1,), [0])
